#include "millrace/schedule/internal/two_bp.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::internal {

Schedule two_bp_one_f_one_b(const char* name, const ScheduleConfig& config) {
  const int m = config.num_microbatches;
  Schedule schedule = placed_schedule(name, config, looped_placement(config.num_ranks, 1), true);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    RankOrder order(schedule.period[static_cast<std::size_t>(rank)]);
    const int warm_up = std::min(m, config.num_ranks - 1 - rank);
    for (int turn = 0; turn < m + warm_up; ++turn) {
      if (turn < m) {
        order.next(ActionKind::kForward, rank);
      }
      if (turn >= warm_up) {
        order.next(ActionKind::kInputGradient, rank);
        if (order.num(ActionKind::kForward, rank) == m) {
          order.next(ActionKind::kWeightGradient, rank);
        }
      }
    }
    while (order.num(ActionKind::kWeightGradient, rank) < m) {
      order.next(ActionKind::kWeightGradient, rank);
    }
  }
  return schedule;
}

std::optional<SlotFormula> two_bp_one_f_one_b_formula(const ScheduleConfig& config, double f,
                                                      double b) {
  return slots_of_rank(config, config.num_microbatches * (f + b),
                       (config.num_ranks - 1) * std::max(f, b / 2));
}

StashFormula two_bp_stash(const ScheduleConfig& config) {
  return {std::vector<int>(static_cast<std::size_t>(config.num_ranks), config.num_microbatches)};
}

std::optional<std::string> two_bp_refuses(const ScheduleConfig& config, int per_rank) {
  if (config.num_microbatches != per_rank * config.num_ranks) {
    return fmt::format(
        "the paper's 1F1B-1 and 1F1B-2 are one order, told apart only by their microbatches: P of "
        "them (2bp-1f1b-1) or 2P (2bp-1f1b-2); found microbatches = {} on {} ranks; set "
        "microbatches = {}, or take zb-h1, which waits no longer with any number",
        config.num_microbatches, config.num_ranks, per_rank * config.num_ranks);
  }
  return refused_chunks(config, 1);
}

}  // namespace millrace::internal
