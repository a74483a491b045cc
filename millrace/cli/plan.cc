// millrace plan: stages and replicas from a profile and a cluster, beside what the simpler ways to
// use the same workers would take.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/planner/planner.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/registry.h"
#include "millrace/sim/simulate.h"

namespace millrace::cli {
namespace {

// A schedule that takes replicas, for plans that the chosen one cannot run.
constexpr const char* kFlushSchedule = "1f1b";
// What runs a plan where neither the user nor the planner says.
constexpr const char* kSchedule = "pipedream";
constexpr const char* kRule = "bsp";

constexpr double kSlowestLink = 500;    // bytes a second
constexpr std::size_t kMostWidths = 8;  // stages written out one by one

struct Candidate {
  const char* title;
  Plan plan;
  std::optional<Simulation> simulation;
  std::string refusal;  // why there is no simulation
};

// Planners weigh whole minibatches; a profile is of one microbatch. Updates happen once a step.
Profile of_minibatch(const Profile& microbatch, int microbatches) {
  Profile profile = microbatch;
  profile.samples_per_microbatch *= microbatches;
  for (LayerProfile& layer : profile.layers) {
    layer.forward_s *= microbatches;
    layer.input_gradient_s *= microbatches;
    layer.weight_gradient_s *= microbatches;
    layer.output_bytes *= microbatches;
    layer.stash_bytes *= microbatches;
    layer.kept_bytes *= microbatches;
    layer.shared_stash_bytes *= microbatches;
  }
  return profile;
}

// What this run of the command is about.
struct Question {
  Profile profile;  // of a microbatch
  Profile minibatch;
  Cluster cluster;
  int workers = 1;
  int64_t batch = 1;
};

Question read_question(const PlanArgs& args) {
  Question question;
  question.profile = profile_from(read_document(args.profile));
  question.cluster = cluster_from(read_document(args.cluster));
  question.workers = args.workers > 0 ? args.workers : question.cluster.num_devices();
  question.minibatch = of_minibatch(question.profile, args.microbatches.value_or(1));
  question.batch = question.minibatch.samples_per_microbatch;
  return question;
}

void simulate_candidate(Candidate& candidate, const Question& question) {
  try {
    candidate.simulation =
        simulate_plan(candidate.plan, question.profile, question.cluster, question.batch);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) {
      throw;
    }
    candidate.refusal = error.message();
  }
}

// What the user fixed; of what is left free, planners that choose nothing are told the defaults.
PlanRequest with_run(PlanRequest request, const PlanArgs& args, const std::string& planner) {
  const bool chooses = find_planner(planner).chooses_run;
  if (!args.schedule.empty() || !chooses) {
    request.schedule = args.schedule.empty() ? kSchedule : args.schedule;
    const Recompute recompute = find_schedule(*request.schedule).builtin->recompute;
    if (!chooses || recompute != Recompute::kNothing) {
      request.recompute = recompute;
    }
  }
  if (!args.rule.empty() || !chooses) {
    request.rule = args.rule.empty() ? kRule : args.rule;
  }
  if (args.microbatches || !chooses) {
    request.microbatches = args.microbatches.value_or(1);
  }
  return request;
}

Candidate plan_by(const std::string& planner, const char* title, const PlanArgs& args,
                  const PlanRequest& request) {
  Candidate candidate{title, make_plan(planner, with_run(request, args, planner)), {}, ""};
  candidate.plan.shard = parse_shard(args.shard);
  return candidate;
}

// Of the simpler ways. Data parallelism splits each minibatch over its replicas, whatever the
// plan's own schedule does with minibatches, so that both take the same steps.
Candidate alternative(const std::string& planner, const char* title, const PlanArgs& args,
                      const Question& question) {
  const PlanRequest free{question.minibatch, question.cluster, question.workers, {}, {}, false};
  Candidate candidate = plan_by(planner, title, args, free);
  if (candidate.plan.num_used_ranks() > 1) {
    candidate.plan.schedule = kFlushSchedule;
  }
  simulate_candidate(candidate, question);
  return candidate;
}

// Which simpler way beats the plan, if any: both as simulated, or by the formula where the plan
// cannot be simulated.
void note_what_wins(const std::vector<Candidate>& candidates, std::vector<std::string>& notes) {
  const Candidate& chosen = candidates[0];
  const auto seconds = [&chosen](const Candidate& candidate) {
    return chosen.simulation && candidate.simulation ? candidate.simulation->step_s
                                                     : candidate.plan.minibatch_s;
  };
  const Candidate& parallel = candidates[1];
  const Candidate& one = candidates[2];
  if (chosen.plan.stages == parallel.plan.stages && chosen.plan.num_used_ranks() > 1) {
    notes.emplace_back("this is plain data parallel: one stage on all workers");
    return;
  }
  const bool one_is_faster = seconds(one) < seconds(parallel);
  const Candidate& best = one_is_faster ? one : parallel;
  if (chosen.plan.stages != best.plan.stages && seconds(best) < seconds(chosen)) {
    notes.push_back(
        fmt::format("{} wins here: {} a minibatch against {}; use --planner {} --schedule {}",
                    best.title, format_seconds(seconds(best)), format_seconds(seconds(chosen)),
                    one_is_faster ? "one" : "data-parallel", best.plan.schedule));
  }
}

// Bandwidths that no link has are a slip of the unit.
void note_units(const Cluster& cluster, std::vector<std::string>& notes) {
  for (std::size_t k = 0; k < cluster.levels.size(); ++k) {
    const double bandwidth = cluster.levels[k].bandwidth_bytes_per_s;
    if (bandwidth < kSlowestLink) {
      notes.push_back(fmt::format(
          "level[{}].bandwidth_bytes_per_s is {} bytes a second; is it in another unit? 1 GB/s is "
          "1e9, 10 Gbit/s is 1.25e9",
          k, bandwidth));
    }
  }
}

// Whether so many workers are whole components of every network level that they reach.
bool fills_components(const Cluster& cluster, int workers) {
  int devices = 1;
  for (const NetworkLevel& level : cluster.levels) {
    if (devices >= workers) {
      break;
    }
    if (workers % devices != 0) {
      return false;
    }
    devices *= level.size;
  }
  return true;
}

std::vector<std::string> advice(const std::vector<Candidate>& candidates, const PlanArgs& args,
                                const Question& question) {
  std::vector<std::string> notes;
  const Candidate& chosen = candidates[0];
  if (!chosen.simulation) {
    notes.push_back(fmt::format("this plan cannot run as it is: {}", chosen.refusal));
  }
  note_what_wins(candidates, notes);
  note_units(question.cluster, notes);
  if (const int idle = question.workers - chosen.plan.num_used_ranks(); idle > 0) {
    const bool free = args.planner == "pipedream" && !args.stages && args.replicas.empty();
    const char* why = "";
    if (free) {
      why = fills_components(question.cluster, question.workers)
                ? ": using them was not found to be faster"
                : "; a network level's components are used as a whole or not at all, and these "
                  "workers fill none: name a multiple of their size";
    }
    notes.push_back(fmt::format("{} of {} workers stay idle{}", idle, question.workers, why));
  }
  notes.insert(notes.end(), chosen.plan.notes.begin(), chosen.plan.notes.end());
  for (std::size_t rank = 0; rank < chosen.plan.memory.size(); ++rank) {
    const auto total = static_cast<double>(chosen.plan.memory[rank].total());
    if (total > question.cluster.memory_bytes) {
      notes.push_back(fmt::format("rank {} needs {}, a device has {}", rank, format_bytes(total),
                                  format_bytes(question.cluster.memory_bytes)));
    }
  }
  return notes;
}

std::string stage_lines(const Plan& plan, const Profile& minibatch) {
  TextTable table({"stage", "layers", "ranks", "compute", "parameters", "output"});
  const std::vector<StageLink> links = stage_links(plan, minibatch.edges);
  const std::vector<int64_t> bytes =
      link_bytes(plan, minibatch, links, static_cast<double>(minibatch.samples_per_microbatch));
  for (int s = 0; s < plan.num_stages(); ++s) {
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
    double compute_s = 0;
    double parameter_bytes = 0;
    for (const LayerProfile& layer : minibatch.layers) {
      if (std::find(stage.layers.begin(), stage.layers.end(), layer.name) != stage.layers.end()) {
        compute_s += layer.compute_s();
        parameter_bytes += static_cast<double>(layer.parameter_bytes);
      }
    }
    double output_bytes = 0;  // to all stages that use what this one makes
    for (std::size_t l = 0; l < links.size(); ++l) {
      output_bytes += links[l].from == s ? static_cast<double>(bytes[l]) : 0.0;
    }
    std::vector<std::string> ranks;
    ranks.reserve(stage.ranks.size());
    for (const int rank : stage.ranks) {
      ranks.push_back(fmt::format("{}", rank));
    }
    const std::string layers = stage.layers.size() == 1
                                   ? stage.layers.front()
                                   : stage.layers.front() + ".." + stage.layers.back();
    table.row({fmt::format("{}", s), layers, join(ranks, " "), format_seconds(compute_s),
               format_bytes(parameter_bytes),
               s + 1 == plan.num_stages() ? "-" : format_bytes(output_bytes)});
  }
  return table.str();
}

std::string ranking_lines(const std::vector<RankedPlan>& ranking, const Question& question) {
  TextTable table({"", "step", "samples/s", "schedule", "microbatches", "rule", "recompute",
                   "stages by", "stages x ranks", "why"});
  for (std::size_t i = 0; i < ranking.size(); ++i) {
    const Plan& plan = ranking[i].plan;
    std::vector<std::string> widths;
    for (const PlanStage& stage : plan.stages) {
      widths.push_back(fmt::format("{}", stage.ranks.size()));
    }
    const std::string shape =
        widths.size() <= kMostWidths ? join(widths, "-") : fmt::format("{} stages", widths.size());
    table.row({fmt::format("{}", i + 1), format_seconds(ranking[i].step_s),
               fmt::format("{:.0f}", static_cast<double>(question.batch) / ranking[i].step_s),
               plan.schedule, fmt::format("{}", plan.microbatches), plan.rule,
               to_string(plan.recompute), plan.planner, shape, ranking[i].reason});
  }
  return table.str();
}

std::string describe(const std::vector<Candidate>& candidates, const Question& question,
                     const std::vector<RankedPlan>& ranking,
                     const std::vector<std::string>& notes) {
  const Plan& plan = candidates[0].plan;
  std::string text = fmt::format(
      "{}: {} layers, minibatch of {} samples in {} microbatch{}; planner {}, {} workers\n\n",
      question.profile.model, question.profile.layers.size(), question.batch, plan.microbatches,
      plan.microbatches == 1 ? "" : "es", plan.planner, plan.workers);
  text += stage_lines(plan, question.minibatch) + "\n";
  if (!ranking.empty()) {
    text += ranking_lines(ranking, question) + "\n";
  }
  TextTable table({"a minibatch takes", "formula", "simulated", "samples/s", "bubble", "schedule"});
  for (const Candidate& candidate : candidates) {
    const auto& simulation = candidate.simulation;
    table.row({candidate.title, format_seconds(candidate.plan.minibatch_s),
               simulation ? format_seconds(simulation->step_s) : "-",
               simulation && simulation->step_s > 0
                   ? fmt::format("{:.0f}", static_cast<double>(question.batch) / simulation->step_s)
                   : "-",
               simulation ? fmt::format("{:.1f}%", 100 * simulation->bubble_fraction) : "-",
               candidate.plan.schedule});
  }
  text += table.str();
  if (plan.objective_s != plan.minibatch_s) {
    text += fmt::format("\n{} by planner {}'s own formula\n", format_seconds(plan.objective_s),
                        plan.planner);
  }
  for (const std::string& note : notes) {
    text += "\nnote: " + note + "\n";
  }
  return text;
}

// The plan, and beside it what it was simulated to take; plan_from() passes over the latter.
Value to_value(const std::vector<Candidate>& candidates, const std::vector<RankedPlan>& ranking,
               const std::vector<std::string>& notes) {
  const auto seconds = [](const Candidate& candidate) {
    return candidate.simulation ? Value::of(candidate.simulation->step_s) : Value();
  };
  Value root = millrace::to_value(candidates[0].plan);
  root.set("simulated_step_s", seconds(candidates[0]));
  Value& simulation = root.set("simulation", Value::map());
  simulation.set("data_parallel_step_s", seconds(candidates[1]));
  simulation.set("one_worker_step_s", seconds(candidates[2]));
  simulation.set("bubble_fraction", candidates[0].simulation
                                        ? Value::of(candidates[0].simulation->bubble_fraction)
                                        : Value());
  if (!ranking.empty()) {
    Value& ranked = simulation.set("ranking", Value::list());
    for (const RankedPlan& candidate : ranking) {
      Value item = Value::map();
      item.set("simulated_step_s", Value::of(candidate.step_s));
      item.set("reason", Value::of(candidate.reason));
      item.set("plan", millrace::to_value(candidate.plan));
      ranked.push(std::move(item));
    }
  }
  Value list = Value::list();
  for (const std::string& note : notes) {
    list.push(Value::of(note));
  }
  simulation.set("notes", std::move(list));
  return root;
}

}  // namespace

int run_plan(const PlanArgs& args, Output& output) {
  const PlannerEntry& planner = find_planner(args.planner);
  if (!args.schedule.empty()) {
    find_schedule(args.schedule);
  }
  if (!args.rule.empty()) {
    find_rule(args.rule);
  }
  const Question question = read_question(args);
  PlanRequest request{question.minibatch, question.cluster, question.workers,
                      args.stages,        args.replicas,    args.straight};
  std::vector<RankedPlan> ranking;
  request.ranked = [&ranking](const RankedPlan& ranked) { ranking.push_back(ranked); };
  std::vector<Candidate> candidates;
  candidates.push_back(plan_by(args.planner, "this plan", args, request));
  Candidate& chosen = candidates.front();
  if (!planner.chooses_run) {
    // What no plan of this size could be run by is a wrong request; replicas alone are not.
    make_schedule(chosen.plan.schedule, {chosen.plan.num_stages(), chosen.plan.microbatches});
  }
  simulate_candidate(chosen, question);
  if (chosen.simulation) {
    for (const RankSimulation& rank : chosen.simulation->ranks) {
      chosen.plan.memory.push_back(rank.memory);
    }
  }
  candidates.push_back(alternative("data-parallel", "plain data parallel", args, question));
  candidates.push_back(alternative("one", "one worker", args, question));

  const std::vector<std::string> notes = advice(candidates, args, question);
  if (!args.output.empty()) {
    write_file_atomically(args.output, to_json(millrace::to_value(candidates[0].plan)) + "\n");
  }
  output.document(to_value(candidates, ranking, notes));
  output.text(describe(candidates, question, ranking, notes));
  if (!args.output.empty()) {
    output.text(
        fmt::format("\nwritten to {}; next: millrace simulate {} --profile {} --cluster {}\n",
                    args.output, args.output, args.profile, args.cluster));
  }
  return 0;
}

}  // namespace millrace::cli
