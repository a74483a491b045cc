#include "millrace/schedule/internal/builtins.h"

namespace millrace::internal {

Schedule straight_schedule(const char* name, const ScheduleConfig& config, bool flush) {
  const auto num_ranks = static_cast<std::size_t>(config.num_ranks);
  Schedule schedule;
  schedule.name = name;
  schedule.flush = flush;
  schedule.num_ranks = config.num_ranks;
  schedule.num_stages = config.num_ranks;
  schedule.num_microbatches = config.num_microbatches;
  schedule.period_microbatches = config.num_microbatches;
  for (int stage = 0; stage < config.num_ranks; ++stage) {
    schedule.stage_ranks.push_back({stage});
  }
  schedule.prologue.resize(num_ranks);
  schedule.period.resize(num_ranks);
  schedule.epilogue.resize(num_ranks);
  return schedule;
}

ActionList staggered_order(int stage, int64_t num_microbatches, int64_t ahead) {
  ActionList list;
  list.reserve(static_cast<std::size_t>(2 * num_microbatches));
  for (int64_t turn = 0; turn < num_microbatches + ahead; ++turn) {
    if (turn < num_microbatches) {
      list.push_back(Action::of(ActionKind::kForward, stage, turn));
    }
    if (turn >= ahead) {
      list.push_back(Action::of(ActionKind::kBackward, stage, turn - ahead));
    }
  }
  return list;
}

}  // namespace millrace::internal
