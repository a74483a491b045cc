#include "millrace/sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/sim/internal/engine.h"
#include "millrace/sim/internal/memory.h"
#include "millrace/sim/internal/run_list.h"

namespace millrace {
namespace {

using internal::RankRun;

// Steps simulated with a flush where one does not stand for all.
constexpr int64_t kStepsOfUnlikeOnes = 60;

struct Span {
  double first_s = std::numeric_limits<double>::infinity();
  double last_s = 0;
  void add(const TraceEvent& event) {
    first_s = std::min(first_s, event.start_s);
    last_s = std::max(last_s, event.end_s);
  }
  double length_s() const { return last_s > first_s ? last_s - first_s : 0.0; }
};

// Spans over the actions of steps below `num_steps`.
Span span_of(const std::vector<RankRun>& runs, int64_t num_steps, bool compute_only) {
  Span span;
  for (const RankRun& run : runs) {
    for (std::size_t i = 0; i < run.actions.size(); ++i) {
      if (run.actions[i].step < num_steps &&
          (!compute_only || is_compute(run.actions[i].action.kind))) {
        span.add(run.trace.events[i]);
      }
    }
  }
  return span;
}

double busy_s(const RankRun& run, int64_t num_steps) {
  double sum_s = 0;
  for (std::size_t i = 0; i < run.actions.size(); ++i) {
    if (run.actions[i].step < num_steps && is_compute(run.actions[i].action.kind)) {
      sum_s += run.trace.events[i].end_s - run.trace.events[i].start_s;
    }
  }
  return sum_s;
}

// Seconds between minibatches once the pipeline is full and before it drains, see simulate().
// Minibatches that leave together, a round of replicas, count as a whole.
double steady_period_s(const std::vector<RankRun>& runs, const LoweredSchedule& lowered,
                       int64_t num_steps) {
  std::vector<double> done_s(num_steps, 0.0);  // end of each minibatch's last backward
  int64_t ahead = 0;  // most steps that some rank's forwards run ahead of its backwards
  for (const RankRun& run : runs) {
    int64_t newest = 0;
    for (std::size_t i = 0; i < run.actions.size(); ++i) {
      const ActionKind kind = run.actions[i].action.kind;
      const int64_t step = run.actions[i].step;
      if (kind == ActionKind::kForward) {
        newest = std::max(newest, step);
      } else if (is_compute(kind)) {
        done_s[step] = std::max(done_s[step], run.trace.events[i].end_s);
        ahead = std::max(ahead, newest - step);
      }
    }
  }
  const int64_t round = lowered.round_steps;
  const int64_t first = ahead;
  const int64_t last = num_steps - 1 - ahead;
  const int64_t rounds = (last - first) / 2 / round;
  const int64_t middle = last - (rounds > 0 ? rounds * round : (last - first) - (last - first) / 2);
  if (last > middle) {
    return (done_s[last] - done_s[middle]) / static_cast<double>(last - middle);
  }
  if (num_steps > 1) {
    return (done_s.back() - done_s.front()) / static_cast<double>(num_steps - 1);
  }
  return done_s[0];
}

// Mean time between the ends of successive steps over the later two thirds.
double mean_period_s(const std::vector<RankRun>& runs, int64_t num_steps) {
  std::vector<double> done_s(static_cast<std::size_t>(num_steps), 0.0);
  for (const RankRun& run : runs) {
    for (std::size_t i = 0; i < run.actions.size(); ++i) {
      double& last_s = done_s[static_cast<std::size_t>(run.actions[i].step)];
      last_s = std::max(last_s, run.trace.events[i].end_s);
    }
  }
  const int64_t first = num_steps / 3;
  return (done_s.back() - done_s[static_cast<std::size_t>(first)]) /
         static_cast<double>(num_steps - 1 - first);
}

// The same of parts on demand: a step is done with every so many parts, in the order in which whole
// copies are done with them.
double mean_period_on_demand_s(const std::vector<RankRun>& runs, const LoweredSchedule& lowered,
                               int64_t num_steps) {
  std::vector<std::vector<double>> done_s(lowered.stage_ranks.front().size());  // by copy
  for (std::size_t stage = 0; stage < lowered.stage_ranks.size(); ++stage) {
    for (std::size_t copy = 0; copy < done_s.size(); ++copy) {
      const int rank = lowered.stage_ranks[stage][copy];
      const std::size_t size = lowered.ranks[rank].size();
      const std::vector<TraceEvent>& events = runs[rank].trace.events;
      done_s[copy].resize(events.size() / size);
      for (std::size_t step = 0; step < done_s[copy].size(); ++step) {
        double& last_s = done_s[copy][step];
        last_s = std::max(last_s, events[(step + 1) * size - 1].end_s);
      }
    }
  }
  std::vector<double> all_s;
  for (const std::vector<double>& own_s : done_s) {
    all_s.insert(all_s.end(), own_s.begin(), own_s.end());
  }
  std::sort(all_s.begin(), all_s.end());
  const int64_t first = num_steps / 3;
  const std::size_t parts = static_cast<std::size_t>(first + 1) * done_s.size();
  return (all_s.back() - all_s[parts - 1]) / static_cast<double>(num_steps - 1 - first);
}

double last_end_s(const std::vector<RankRun>& runs) {
  double last_s = 0;
  for (const RankRun& run : runs) {
    last_s = std::max(last_s, run.ended_s);
  }
  return last_s;
}

}  // namespace

Simulation simulate(const SimulationInput& input) {
  std::vector<RankRun> runs = internal::Engine(input).run();
  const bool flush = input.lowered.flush;
  const bool alike =
      !input.on_demand && internal::steps_are_alike(input.lowered, internal::traits_of_rule(input));
  const int64_t measured_steps = flush && alike ? 1 : input.num_steps;
  Span whole = span_of(runs, input.num_steps, false);
  whole.last_s = std::max(whole.last_s, last_end_s(runs));

  Simulation simulation;
  simulation.window_s = span_of(runs, measured_steps, true).length_s();
  if (!flush) {
    simulation.step_s = steady_period_s(runs, input.lowered, input.num_steps);
  } else if (input.num_steps == 1) {
    simulation.step_s = whole.length_s();
  } else if (alike) {
    simulation.step_s = span_of(runs, 1, false).length_s();
  } else {
    simulation.step_s = input.on_demand
                            ? mean_period_on_demand_s(runs, input.lowered, input.num_steps)
                            : mean_period_s(runs, input.num_steps);
  }
  for (RankRun& run : runs) {
    RankSimulation rank;
    rank.busy_s = busy_s(run, measured_steps);
    if (simulation.window_s > 0) {
      rank.bubble_fraction = (simulation.window_s - rank.busy_s) / simulation.window_s;
    }
    internal::RankMemory memory =
        internal::memory_of(run, input.lowered, input.costs, input.optimizer_buffers);
    rank.peak_stash_bytes = memory.peak.stash_bytes;
    rank.peak_in_flight = memory.peak_in_flight;
    rank.peak_weight_versions = memory.peak_weight_versions;
    rank.memory = memory.peak;
    if (!run.actions.empty()) {
      simulation.total_slots += simulation.window_s;
      simulation.idle_slots += simulation.window_s - rank.busy_s;
    }
    simulation.ranks.push_back(rank);
    simulation.memory.push_back(std::move(memory.curve));
  }
  if (simulation.total_slots > 0) {
    simulation.bubble_fraction = simulation.idle_slots / simulation.total_slots;
  }

  simulation.trace.source = "simulated";
  simulation.trace.num_steps = input.num_steps;
  simulation.trace.step_s = simulation.step_s;
  simulation.trace.window_s = whole.length_s();
  for (RankRun& run : runs) {
    simulation.trace.ranks.push_back(std::move(run.trace));
  }
  return simulation;
}

int64_t steady_steps(int num_ranks, int64_t round_steps) {
  constexpr int64_t kMostSteps = 8192;  // rounds of replicas without a common factor grow large
  const int64_t least = 4 * int64_t{num_ranks} + 40;
  const int64_t wanted = std::max(least, 8 * round_steps);
  return wanted <= kMostSteps ? (wanted + round_steps - 1) / round_steps * round_steps
                              : std::max(kMostSteps, least);
}

int64_t representative_steps(const LoweredSchedule& lowered, const std::string& rule) {
  return lowered.flush && !internal::steps_are_alike(lowered, find_rule(rule).traits)
             ? kStepsOfUnlikeOnes
             : 1;
}

Simulation simulate_plan(const Plan& plan, const Profile& profile, const Cluster& cluster,
                         int64_t batch, const PlanSimulation& run) {
  if (plan.stages.empty() || plan.stages[0].ranks.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "expected a plan of at least one stage with a rank, found none");
  }
  if (plan.split_parts > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a profile does not say which layers can be split, and this plan has "
                            "them in {} parts; `millrace train` predicts such plans, with the "
                            "model at hand",
                            plan.split_parts));
  }
  if (batch < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected a batch of at least 1 sample, found {}", batch));
  }
  const Schedule schedule = make_schedule(plan.schedule, schedule_config(plan), run.policy);
  const std::vector<StageLink> links = stage_links(plan, profile.edges);
  int64_t num_steps = 1;
  if (!schedule.flush) {
    const int64_t round = schedule.period_microbatches / schedule.num_microbatches;
    num_steps = run.num_steps.value_or(steady_steps(plan.num_used_ranks(), round));
  }
  const LoweredSchedule lowered = lower(schedule, plan, num_steps, links, run.clips);
  const double samples = samples_per_part(schedule, batch);
  SimulationInput input{.lowered = lowered,
                        .costs = stage_costs(plan, profile, samples),
                        .cluster = cluster,
                        .rule = plan.rule,
                        .num_steps = num_steps,
                        .optimizer_buffers = run.optimizer_buffers};
  if (schedule.flush) {
    const int64_t shown =
        run.on_demand ? kStepsOfUnlikeOnes : representative_steps(lowered, plan.rule);
    input.num_steps = run.num_steps.value_or(shown);
  }
  for (StageCost& cost : input.costs) {
    if (!run.overlaps) {
      cost.pieces.clear();
    }
  }
  input.batch = static_cast<double>(batch);
  input.rule_options = plan.rule_options;
  input.node_of_rank = run.node_of_rank;
  input.seed = run.seed;
  input.link_bytes = link_bytes(plan, profile, links, samples);
  input.all_reduce_s = run.all_reduce_s;
  input.on_demand = run.on_demand;
  input.slowdown = run.slowdown;
  return simulate(input);
}

}  // namespace millrace
