// 1F1B that is never drained inside an epoch, with one update for every M microbatches: two weight
// versions are enough, as a microbatch in flight over an update reads the one before. Source:
// "Memory-Efficient Pipeline-Parallel DNN Training" (Narayanan et al., ICML'21), section 3.1
// (PipeDream-2BW).
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::placed_schedule(
      "pipedream-2bw", config, internal::looped_placement(config.num_ranks, 1), false);
  schedule.policy = "double_buffer";
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const int64_t warm_up = internal::one_f_one_b_warm_up(config, rank);
    for (int64_t i = 0; i < warm_up; ++i) {
      schedule.prologue[index].push_back(Action::of(ActionKind::kForward, rank, i));
      schedule.epilogue[index].push_back(
          Action::of(ActionKind::kBackward, rank, config.num_microbatches + i));
    }
    for (int64_t i = 0; i < config.num_microbatches; ++i) {
      schedule.period[index].push_back(Action::of(ActionKind::kForward, rank, warm_up + i));
      schedule.period[index].push_back(Action::of(ActionKind::kBackward, rank, i));
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  if (config.num_microbatches < config.num_ranks - 1) {
    return "with fewer than P-1 microbatches an update the first stage would need a version that "
           "is not made yet, or a third one kept; found microbatches = " +
           std::to_string(config.num_microbatches) + " on " + std::to_string(config.num_ranks) +
           " ranks; set microbatches = " + std::to_string(config.num_ranks - 1) +
           " or more, or take pipedream with microbatches = 1";
  }
  return internal::refused_chunks(config, 1);
}

std::vector<std::string> policies() { return {"double_buffer"}; }

// The steady period is the M forwards and backwards of a step: nobody waits.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  return internal::slots_of_rank(config, config.num_microbatches * (f + b), 0);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    peaks.push_back(internal::one_f_one_b_warm_up(config, rank) + 1);
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin pipedream_2bw = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "no idle in the steady period; stash P-r, two weight versions for M >= P-1 "
        "(ICML'21, section 3.1)"};

}  // namespace millrace::schedule_builtin
