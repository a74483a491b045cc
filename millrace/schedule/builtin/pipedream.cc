// One forward and one backward in turn, an update after every backward, never drained inside an
// epoch. Each stage keeps the weight versions that its minibatches in flight have read, so that a
// backward sees its forward's weights. Source: PipeDream (Narayanan et al., "PipeDream: Generalized
// Pipeline Parallelism for DNN Training", SOSP'19), section 3.2 (1F1B) and section 3.3 (weight
// stashing). Here for straight pipelines, one replica a stage.
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::straight_schedule("pipedream", config, false);
  schedule.policy = "stash";
  const int depth = config.num_ranks - 1;
  for (int stage = 0; stage < config.num_ranks; ++stage) {
    const int warm_up = depth - stage;
    // Prologue and epilogue together are the alternation of `depth` minibatches; the period is cut
    // in between, where every stage is about to run a forward with `warm_up` minibatches in flight.
    const ActionList ends = internal::staggered_order(stage, depth, warm_up);
    schedule.prologue[stage].assign(ends.begin(), ends.begin() + warm_up);
    schedule.period[stage] = {Action::of(ActionKind::kForward, stage, warm_up),
                              Action::of(ActionKind::kBackward, stage, 0)};
    schedule.epilogue[stage].assign(ends.begin() + warm_up, ends.end());
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  if (config.num_microbatches == 1) {
    return std::nullopt;
  }
  return "a schedule without a flush takes one microbatch a step, found microbatches = " +
         std::to_string(config.num_microbatches) +
         "; set microbatches = 1, or take a schedule with a flush such as 1f1b (several "
         "microbatches an "
         "update without a flush is pipedream-2bw, which is not in this build)";
}

std::vector<std::string> policies() { return {"stash", "latest"}; }

// The steady period is one forward and one backward on every rank: nobody waits.
SlotFormula formula(const ScheduleConfig&, double f, double b) {
  return {.window_slots = f + b, .idle_slots = 0};
}

std::vector<int> peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (int stage = 0; stage < config.num_ranks; ++stage) {
    peaks.push_back(config.num_ranks - stage);
  }
  return peaks;
}

}  // namespace

const ScheduleBuiltin pipedream = {
    make,
    offers,
    policies,
    formula,
    peak_stash,
    "no idle in the steady period; stash and weight versions S-s on stage s (SOSP'19, section 3)"};

}  // namespace millrace::schedule_builtin
