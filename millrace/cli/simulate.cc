// millrace simulate: step time, bubble and memory of each rank, predicted.
#include "millrace/sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/cli/picture.h"
#include "millrace/cli/schedule_source.h"
#include "millrace/core/cluster.h"
#include "millrace/core/profile.h"
#include "millrace/core/run_config.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/validate.h"

namespace millrace::cli {
namespace {

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// A simulation and what it was asked about.
struct Answer {
  ChosenSchedule chosen;
  Simulation simulation;
  std::optional<Slots> slots;          // times are slots, not seconds
  std::optional<SlotFormula> formula;  // the closed form for these slots
  std::optional<int64_t> batch;        // samples of a minibatch
  std::vector<std::string> notes;
};

bool in_slots(const SimulateArgs& args) {
  const bool profile = !args.profile.empty();
  if (profile != !args.cluster.empty()) {
    throw wrong("--profile and --cluster go together; give both, or --slots F:B in their place");
  }
  if (profile && !args.slots.empty()) {
    throw wrong("--slots and --profile exclude each other; give one");
  }
  if (profile && args.source.plan.empty()) {
    throw wrong(
        "a profile needs a plan that says which layers make a stage; make one with "
        "`millrace plan`, or leave out --profile and give --slots F:B");
  }
  if (!profile && !args.source.plan.empty() && args.slots.empty()) {
    throw wrong("a plan needs --profile FILE and --cluster FILE, or --slots F:B in their place");
  }
  if (!profile && args.batch) {
    throw wrong("--batch goes with --profile; slots know no samples");
  }
  return !profile;
}

void simulate_slots(const SimulateArgs& args, Answer& answer) {
  answer.slots = parse_slots(args.slots.empty() ? "1:2" : args.slots);
  const LoweredSchedule& lowered = answer.chosen.lowered;
  const Cluster cluster = free_cluster(static_cast<int>(lowered.ranks.size()));
  const auto [f, b] = *answer.slots;
  answer.simulation = simulate({.lowered = lowered,
                                .costs = slot_costs(lowered.num_stages, f, b),
                                .cluster = cluster,
                                .num_steps = answer.chosen.num_steps});
  if (answer.chosen.shape) {
    answer.formula = answer.chosen.builtin->formula(*answer.chosen.shape, f, b);
  }
}

void simulate_profile(const SimulateArgs& args, Answer& answer) {
  const Profile profile = profile_from(read_document(args.profile));
  const Cluster cluster = cluster_from(read_document(args.cluster));
  const Plan& plan = *answer.chosen.plan;
  check_plan(plan, layer_names(profile), profile.edges, args.source.plan);
  if (cluster.num_devices() < static_cast<int>(answer.chosen.lowered.ranks.size())) {
    throw wrong(fmt::format("{} devices for the plan's {} workers; use another cluster file or "
                            "plan again",
                            cluster.num_devices(), answer.chosen.lowered.ranks.size()))
        .in_file(args.cluster);
  }
  // Not all ranks of a stage need be replicas that take a share of their own: a microbatch of a
  // bidirectional schedule runs on one of a stage's two ranks.
  const int64_t replicas =
      std::max(answer.chosen.schedule.num_microbatches / std::max(plan.microbatches, 1), 1);
  answer.batch = args.batch.value_or(profile.samples_per_microbatch * plan.microbatches);
  if (args.batch) {
    check_batch(*args.batch, std::nullopt, plan.microbatches, replicas);
  }
  const double samples = samples_per_part(answer.chosen.schedule, *answer.batch);
  // Lowered again: the profile knows which stages hand tensors to which.
  const std::vector<StageLink> links = stage_links(plan, profile.edges);
  validate(answer.chosen.schedule, plan, links);
  answer.chosen.lowered = lower(answer.chosen.schedule, plan, answer.chosen.num_steps, links);
  SimulationInput input{.lowered = answer.chosen.lowered,
                        .costs = stage_costs(plan, profile, samples),
                        .cluster = cluster,
                        .rule = plan.rule,
                        .num_steps = answer.chosen.num_steps};
  input.rule_options = plan.rule_options;
  input.num_steps =
      std::max(input.num_steps, representative_steps(answer.chosen.lowered, plan.rule));
  input.link_bytes = link_bytes(plan, profile, answer.chosen.lowered.links, samples);
  input.batch = static_cast<double>(*answer.batch);
  answer.simulation = simulate(input);
  for (std::size_t rank = 0; rank < answer.simulation.ranks.size(); ++rank) {
    const auto total = static_cast<double>(answer.simulation.ranks[rank].memory.total());
    if (total > cluster.memory_bytes) {
      answer.notes.push_back(fmt::format("rank {} needs {}, a device has {}", rank,
                                         format_bytes(total), format_bytes(cluster.memory_bytes)));
    }
  }
}

std::string percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

void add_notes(Answer& answer) {
  const ChosenSchedule& chosen = answer.chosen;
  const int stages = chosen.schedule.num_stages;
  if (chosen.num_parts() < stages) {
    answer.notes.push_back(fmt::format(
        "{} {} for {} stages never fill the pipeline: {} of the ranks' time is idle; use at least "
        "{}",
        chosen.num_parts(), chosen.schedule.flush ? "microbatches" : "minibatches", stages,
        percent(answer.simulation.bubble_fraction), stages));
  }
  const auto idle =
      std::count_if(chosen.lowered.rank_stages.begin(), chosen.lowered.rank_stages.end(),
                    [](const std::vector<int>& held) { return held.empty(); });
  if (idle > 0) {
    answer.notes.push_back(
        fmt::format("the plan leaves {} of {} workers idle", idle, chosen.lowered.ranks.size()));
  }
}

Value to_value(const MemoryUse& memory) {
  Value value = Value::map();
  value.set("weight_bytes", Value::of(memory.weight_bytes));
  value.set("gradient_bytes", Value::of(memory.gradient_bytes));
  value.set("optimizer_bytes", Value::of(memory.optimizer_bytes));
  value.set("stash_bytes", Value::of(memory.stash_bytes));
  value.set("border_bytes", Value::of(memory.border_bytes));
  value.set("total_bytes", Value::of(memory.total()));
  return value;
}

Value to_value(const Answer& answer) {
  const Simulation& simulation = answer.simulation;
  const Schedule& schedule = answer.chosen.schedule;
  Value root = Value::map();
  root.set("step_s", Value::of(simulation.step_s));
  root.set("bubble_fraction", Value::of(simulation.bubble_fraction));
  root.set("idle_slots", Value::of(simulation.idle_slots));
  root.set("total_slots", Value::of(simulation.total_slots));
  root.set("window_s", Value::of(simulation.window_s));
  Value ranks = Value::list();
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const RankSimulation& part = simulation.ranks[rank];
    Value item = Value::map();
    item.set("rank", Value::of(static_cast<int64_t>(rank)));
    Value& stages = item.set("stages", Value::list());
    for (const int stage : answer.chosen.lowered.rank_stages[rank]) {
      stages.push(Value::of(stage));
    }
    item.set("busy_s", Value::of(part.busy_s));
    item.set("bubble_fraction", Value::of(part.bubble_fraction));
    item.set("peak_stash_bytes", Value::of(part.peak_stash_bytes));
    item.set("peak_in_flight", Value::of(part.peak_in_flight));
    item.set("peak_weight_versions", Value::of(part.peak_weight_versions));
    item.set("memory", to_value(part.memory));
    ranks.push(std::move(item));
  }
  root.set("ranks", std::move(ranks));
  root.set("schedule", Value::of(schedule.name));
  root.set("policy", Value::of(schedule.policy));
  root.set("flush", Value::of(schedule.flush));
  root.set("num_stages", Value::of(schedule.num_stages));
  root.set("num_microbatches", Value::of(schedule.num_microbatches));
  root.set("num_steps", Value::of(simulation.trace.num_steps));
  if (answer.batch) {
    root.set("batch", Value::of(*answer.batch));
  }
  if (answer.formula) {
    Value formula = Value::map();
    formula.set("window_slots", Value::of(answer.formula->window_slots));
    formula.set("idle_slots", Value::of(answer.formula->idle_slots));
    formula.set("exact", Value::of(answer.formula->exact));  // false: upper bounds
    formula.set("text", Value::of(answer.chosen.builtin->formula_text));
    root.set("formula", std::move(formula));
  }
  Value notes = Value::list();
  for (const std::string& note : answer.notes) {
    notes.push(Value::of(note));
  }
  root.set("notes", std::move(notes));
  return root;
}

// Seconds with their unit; slots as they are, rounded to what floating point holds of them.
std::string duration(const Answer& answer, double value) {
  return answer.slots ? fmt::format("{:.6g}", value) : format_seconds(value);
}

std::string describe(const Answer& answer) {
  const Simulation& simulation = answer.simulation;
  const bool flush = answer.chosen.schedule.flush;
  const int64_t num_steps = simulation.trace.num_steps;
  const bool unlike = flush && num_steps > 1;  // no step stands for the others
  const char* unit = answer.slots ? " slots" : "";
  std::string text = describe(answer.chosen) + "\n";
  if (answer.slots) {
    text += fmt::format("times in slots: F takes {}, B {}, messages nothing\n",
                        answer.slots->forward, answer.slots->backward);
  } else {
    text +=
        fmt::format("batch {} samples; plan {}\n", *answer.batch, describe(*answer.chosen.plan));
  }
  const auto formula = [&](double value) {
    return answer.formula
               ? fmt::format(" (formula: {}{:.6g})", answer.formula->exact ? "" : "at most ", value)
               : std::string();
  };
  const SlotFormula closed = answer.formula.value_or(SlotFormula{});
  text += fmt::format("\nstep    {}{}{}{}\n", duration(answer, simulation.step_s), unit,
                      unlike  ? fmt::format(", the mean of {} steps' later two thirds", num_steps)
                      : flush ? ""
                              : ", the steady period",
                      formula(closed.window_slots));
  if (answer.batch && simulation.step_s > 0) {
    text += fmt::format("        {:.0f} samples/s\n",
                        static_cast<double>(*answer.batch) / simulation.step_s);
  }
  text += fmt::format(
      "bubble  {}: {} of {}{} of the ranks' time idle{}{}\n\n", percent(simulation.bubble_fraction),
      duration(answer, simulation.idle_slots), duration(answer, simulation.total_slots), unit,
      unlike  ? fmt::format(", over all {} steps", num_steps)
      : flush ? ""
              : fmt::format(", filling and draining {} minibatches included", num_steps),
      flush ? formula(closed.idle_slots) : "");
  std::vector<std::string> header = {"rank",   "stage",     "busy",
                                     "bubble", "in flight", "weight versions"};
  if (!answer.slots) {
    header.insert(header.end(), {"stash", "memory"});
  }
  TextTable table(header);
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const RankSimulation& part = simulation.ranks[rank];
    const std::vector<int>& stages = answer.chosen.lowered.rank_stages[rank];
    std::vector<std::string> cells = {
        fmt::format("{}", rank),
        stages.empty() ? "idle" : fmt::format("{}", fmt::join(stages, ", ")),
        duration(answer, part.busy_s),
        percent(part.bubble_fraction),
        fmt::format("{}", part.peak_in_flight),
        fmt::format("{}", part.peak_weight_versions)};
    if (!answer.slots) {
      cells.push_back(format_bytes(static_cast<double>(part.peak_stash_bytes)));
      cells.push_back(format_bytes(static_cast<double>(part.memory.total())));
    }
    table.row(std::move(cells));
  }
  text += table.str();
  for (const std::string& note : answer.notes) {
    text += "\nnote: " + note + "\n";
  }
  return text;
}

}  // namespace

int run_simulate(const SimulateArgs& args, Output& output) {
  const bool slots = in_slots(args);
  if (args.draw.empty() != args.output.empty()) {
    throw wrong("--draw and -o go together: the form of the picture and its file; give both");
  }
  if (!args.draw.empty()) {
    check_form(args.draw, {"svg", "html"});
  }
  Answer answer;
  answer.chosen = choose_schedule(args.source, Purpose::kSimulate);
  if (slots) {
    simulate_slots(args, answer);
  } else {
    simulate_profile(args, answer);
  }
  add_notes(answer);
  if (!args.trace.empty()) {
    write_file_atomically(args.trace, to_json(to_value(answer.simulation.trace)) + "\n");
  }
  if (!args.draw.empty()) {
    write_file_atomically(args.output,
                          picture(args.draw, answer.simulation.trace, describe(answer.chosen),
                                  slots ? TraceClock::kSlots : TraceClock::kSeconds));
  }
  output.document(to_value(answer));
  output.text(describe(answer));
  if (!args.trace.empty()) {
    output.text(fmt::format("\ntrace written to {}\n", args.trace));
  }
  if (!args.draw.empty()) {
    output.text(fmt::format("\npicture written to {}\n", args.output));
  }
  return 0;
}

}  // namespace millrace::cli
