// One microbatch at a time with the backward in two halves: the next rank upstream does not wait
// for the weight gradient. Source: "2BP: 2-Stage Backpropagation" (Rae, Lee, Richings, 2024),
// figure 1, where a step is one microbatch; here it may be several, one after the other.
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::placed_schedule(
      "2bp-naive", config, internal::looped_placement(config.num_ranks, 1), true);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    internal::RankOrder order(schedule.period[static_cast<std::size_t>(rank)]);
    for (int m = 0; m < config.num_microbatches; ++m) {
      order.next(ActionKind::kForward, rank);
      order.next(ActionKind::kInputGradient, rank);
      order.next(ActionKind::kWeightGradient, rank);
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  return internal::refused_chunks(config, 1);
}

std::vector<std::string> policies() { return {"flush"}; }

// Only rank 0's W is waited for.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const double m = config.num_microbatches;
  return internal::slots_of_rank(config, m * (f + b), m * (config.num_ranks - 1) * (f + b / 2));
}

StashFormula peak_stash(const ScheduleConfig& config) {
  return {std::vector<int>(static_cast<std::size_t>(config.num_ranks), 1)};
}

}  // namespace

const ScheduleBuiltin two_bp_naive = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text = "idle share 2(P-1)/(2P+1) with F = I = W, any M; stash 1 (2BP 2024, figure 1)"};

}  // namespace millrace::schedule_builtin
