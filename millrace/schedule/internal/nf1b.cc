#include "millrace/schedule/internal/nf1b.h"

#include "millrace/schedule/internal/builtins.h"

namespace millrace::internal {
namespace {

// Forwards that a stage is ahead by, beyond those of the minibatch whose backward comes next.
int lead_of(const ScheduleConfig& config, int stage) { return 2 * (config.num_ranks - 1 - stage); }

}  // namespace

Schedule nf1b(const char* name, const ScheduleConfig& config) {
  const int n = config.num_microbatches;
  Schedule schedule = placed_schedule(name, config, looped_placement(config.num_ranks, 1), false);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const int lead = lead_of(config, rank);
    for (int m = 0; m < lead; ++m) {
      schedule.prologue[index].push_back(Action::of(ActionKind::kForward, rank, m));
    }
    for (int m = lead; m < lead + n; ++m) {
      schedule.period[index].push_back(Action::of(ActionKind::kForward, rank, m));
    }
    schedule.period[index].push_back(Action::range(ActionKind::kBackward, rank, 0, n - 1));
    for (int m = n; m < n + lead; m += n) {
      schedule.epilogue[index].push_back(Action::range(ActionKind::kBackward, rank, m, m + n - 1));
    }
  }
  return schedule;
}

std::optional<std::string> nf1b_offers(const ScheduleConfig& config) {
  return refused_chunks(config, 1);
}

std::optional<SlotFormula> nf1b_formula(const ScheduleConfig& config, double f, double b) {
  const int n = config.num_microbatches;
  if (config.num_ranks > 1 && n > 2 && n * b > f) {
    return std::nullopt;
  }
  return slots_of_rank(config, n * (f + b), 0);
}

StashFormula nf1b_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    peaks.push_back(config.num_microbatches + lead_of(config, rank));
  }
  return {std::move(peaks)};
}

}  // namespace millrace::internal
