// Two stages a rank, from the first rank to the last and back, and the backward in two halves: with
// equal F, I and W no rank waits between its first and last action, in the stash of 1F1B. Source:
// "Zero Bubble Pipeline Parallelism" (Qi et al., ICLR'24), section 6 (ZB-V). The order is a
// reconstruction of the handcrafted one.
#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

constexpr int kChunks = 2;

// One rank's order for `num` >= 2P-1 microbatches.
class Writer {
 public:
  Writer(ActionList& list, int num_ranks, int rank, int num)
      : order_(list), num_ranks_(num_ranks), rank_(rank), num_(num) {}

  void write() {
    for (int i = 0; i < 2 * (num_ranks_ - rank_) - 1; ++i) {
      forward(kDown);
    }
    for (int i = 0; i < rank_; ++i) {
      forward(kUp);
      forward(kDown);
    }
    for (int i = 0; i < num_ranks_ - rank_; ++i) {
      forward(kUp);
      both_halves(kUp);
    }
    while (forwards(kUp) < forwards(kDown) || forwards(kDown) < num_) {
      if (forwards(kDown) < num_) {
        forward(kDown);
      }
      both_halves(kDown);
      forward(kUp);
      both_halves(kUp);
    }
    for (int i = 0; i < rank_; ++i) {
      order_.next(ActionKind::kInputGradient, stage(kDown));
      order_.next(ActionKind::kInputGradient, stage(kUp));
    }
    for (int i = 0; i < num_ranks_ - rank_; ++i) {
      both_halves(kDown);
    }
    for (const Leg leg : {kUp, kDown}) {
      while (order_.num(ActionKind::kWeightGradient, stage(leg)) < num_) {
        order_.next(ActionKind::kWeightGradient, stage(leg));
      }
    }
  }

 private:
  enum Leg { kDown, kUp };
  int stage(Leg leg) const { return leg == kDown ? rank_ : 2 * num_ranks_ - 1 - rank_; }
  int64_t forwards(Leg leg) const { return order_.num(ActionKind::kForward, stage(leg)); }
  void forward(Leg leg) { order_.next(ActionKind::kForward, stage(leg)); }
  void both_halves(Leg leg) {
    order_.next(ActionKind::kInputGradient, stage(leg));
    order_.next(ActionKind::kWeightGradient, stage(leg));
  }

  internal::RankOrder order_;
  int num_ranks_;
  int rank_;
  int num_;
};

Schedule make(const ScheduleConfig& config) {
  Schedule schedule =
      internal::placed_schedule("zb-v", config, internal::v_placement(config.num_ranks), true);
  // Fewer microbatches than fill the V run in the order of as many as do.
  const int num = std::max(config.num_microbatches, 2 * config.num_ranks - 1);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    ActionList& list = schedule.period[static_cast<std::size_t>(rank)];
    Writer(list, config.num_ranks, rank, num).write();
    std::erase_if(
        list, [&config](const Action& action) { return action.first >= config.num_microbatches; });
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  return internal::refused_chunks(config, kChunks);
}

std::vector<std::string> policies() { return {"flush"}; }

// The order is made for F = I = W; with other slots some waits return.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const int ranks = config.num_ranks;
  const int m = config.num_microbatches;
  if (b != 2 * f) {
    return std::nullopt;
  }
  return internal::slots_of_rank(config, 2 * m * (f + b),
                                 std::max(ranks - 1, 4 * ranks - 2 - 2 * m) * f);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  return {.ranks = std::vector<int>(static_cast<std::size_t>(ranks),
                                    2 * std::min(config.num_microbatches, ranks)),
          .exact = config.num_microbatches >= 2 * ranks - 1};
}

}  // namespace

const ScheduleBuiltin zb_v = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle max(P-1, 4P-2-2M) slots a rank with F = I = W, none between a rank's "
        "first and last action from M = 2P-1 on; stash at most min(2M, 2P) chunks to W "
        "(ICLR'24, section 6)",
    .chunks = kChunks};

}  // namespace millrace::schedule_builtin
