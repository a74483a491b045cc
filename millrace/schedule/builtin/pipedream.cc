// One forward and one backward in turn, an update after every backward, never drained inside an
// epoch. Each stage keeps the weight versions that its minibatches in flight have read, so that a
// backward sees its forward's weights. Source: PipeDream (Narayanan et al., "PipeDream: Generalized
// Pipeline Parallelism for DNN Training", SOSP'19), section 3.2 (1F1B, and round robin over the
// replicas of a stage) and section 3.3 (weight stashing, vertical sync).
#include <numeric>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::pipeline_schedule("pipedream", config, false);
  schedule.policy = "stash";
  // A period is as many minibatches as bring every stage back to its replica 0.
  int64_t round = 1;
  for (int stage = 0; stage < config.num_stages(); ++stage) {
    round = std::lcm(round, config.replicas_of(stage));
  }
  schedule.period_microbatches = round;
  for (const internal::Position& position : internal::positions_of(config)) {
    const int64_t warm_up = internal::one_f_one_b_warm_up(config, position.stage);
    const int64_t own = round / position.replicas;
    for (int64_t i = 0; i < warm_up; ++i) {
      schedule.prologue[position.rank].push_back(position.action(ActionKind::kForward, i));
      schedule.epilogue[position.rank].push_back(position.action(ActionKind::kBackward, own + i));
    }
    for (int64_t i = 0; i < own; ++i) {
      schedule.period[position.rank].push_back(position.action(ActionKind::kForward, warm_up + i));
      schedule.period[position.rank].push_back(position.action(ActionKind::kBackward, i));
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  if (config.num_microbatches == 1) {
    return std::nullopt;
  }
  return "a schedule without a flush takes one microbatch a step, found microbatches = " +
         std::to_string(config.num_microbatches) +
         "; set microbatches = 1, or take pipedream-2bw, which updates every so many without a "
         "flush, or a schedule with a flush such as 1f1b";
}

std::vector<std::string> policies() { return {"stash", "vertical_sync", "latest"}; }

// The steady period is one forward and one backward on every rank: nobody waits.
std::optional<SlotFormula> formula(const ScheduleConfig&, double f, double b) {
  return SlotFormula{.window_slots = f + b, .idle_slots = 0};
}

StashFormula peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (const internal::Position& position : internal::positions_of(config)) {
    peaks.push_back(internal::one_f_one_b_warm_up(config, position.stage) + 1);
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin pipedream = {
    make,
    offers,
    policies,
    formula,
    peak_stash,
    "no idle in the steady period; stash and weight versions S-s on stage s (SOSP'19, section 3)",
    true};

}  // namespace millrace::schedule_builtin
