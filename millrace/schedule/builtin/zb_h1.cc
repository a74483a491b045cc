// 1F1B with the backward in two halves: the input gradient goes upstream at once, and a rank's
// weight gradients lag by its index, so that they fill what would be its wait for the drain. A
// third of 1F1B's idle time. Source: "Zero Bubble Pipeline Parallelism" (Qi et al., ICLR'24),
// section 2.1 (ZB-H1); the order is a reconstruction, since the figure shows one size only.
#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  const int m = config.num_microbatches;
  Schedule schedule = internal::placed_schedule(
      "zb-h1", config, internal::looped_placement(config.num_ranks, 1), true);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    internal::RankOrder order(schedule.period[static_cast<std::size_t>(rank)]);
    const int warm_up = std::min(m, config.num_ranks - 1 - rank);
    for (int i = 0; i < warm_up; ++i) {
      order.next(ActionKind::kForward, rank);
    }
    for (int i = 0; i < m; ++i) {
      const bool steady = i < m - warm_up;
      if (steady) {
        order.next(ActionKind::kForward, rank);
      }
      order.next(ActionKind::kInputGradient, rank);
      if (!steady || i >= rank) {
        order.next(ActionKind::kWeightGradient, rank);
      }
    }
    while (order.num(ActionKind::kWeightGradient, rank) < m) {
      order.next(ActionKind::kWeightGradient, rank);
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  return internal::refused_chunks(config, 1);
}

std::vector<std::string> policies() { return {"flush"}; }

// Below M = P there are not enough weight gradients to fill the gaps, and how many are missing is
// known for F = I = W alone.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const int ranks = config.num_ranks;
  const int m = config.num_microbatches;
  if (m >= ranks) {
    return internal::slots_of_rank(config, m * (f + b), (ranks - 1) * std::max(f, b / 2));
  }
  if (b != 2 * f) {
    return std::nullopt;
  }
  return internal::slots_of_rank(config, m * (f + b), (2 * ranks - 1 - m) * f);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  return {std::vector<int>(static_cast<std::size_t>(config.num_ranks),
                           std::min(config.num_microbatches, config.num_ranks))};
}

}  // namespace

const ScheduleBuiltin zb_h1 = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle max(P-1, 2P-1-M) slots a rank with F = I = W, a third of 1f1b's from M = "
        "P on; stash min(M, P) to W on every rank (ICLR'24, section 2)"};

}  // namespace millrace::schedule_builtin
