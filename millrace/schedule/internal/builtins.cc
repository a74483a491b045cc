#include "millrace/schedule/internal/builtins.h"

#include <algorithm>

namespace millrace::internal {

Schedule pipeline_schedule(const char* name, const ScheduleConfig& config, bool flush) {
  const auto num_ranks = static_cast<std::size_t>(config.num_ranks);
  Schedule schedule;
  schedule.name = name;
  schedule.flush = flush;
  schedule.num_ranks = config.num_ranks;
  schedule.num_stages = config.num_stages();
  schedule.num_microbatches = flush ? config.num_parts() : 1;
  schedule.period_microbatches = schedule.num_microbatches;
  schedule.stage_ranks.resize(static_cast<std::size_t>(schedule.num_stages));
  for (const Position& position : positions_of(config)) {
    schedule.stage_ranks[static_cast<std::size_t>(position.stage)].push_back(position.rank);
  }
  schedule.prologue.resize(num_ranks);
  schedule.period.resize(num_ranks);
  schedule.epilogue.resize(num_ranks);
  return schedule;
}

int64_t Position::num_own(int64_t num_microbatches) const {
  return std::max<int64_t>(0, (num_microbatches - replica + replicas - 1) / replicas);
}

Action Position::action(ActionKind kind, int64_t index) const {
  return Action::of(kind, stage, index * replicas + replica);
}

std::vector<Position> positions_of(const ScheduleConfig& config) {
  std::vector<Position> positions;
  positions.reserve(static_cast<std::size_t>(config.num_ranks));
  for (int stage = 0; stage < config.num_stages(); ++stage) {
    for (int replica = 0; replica < config.replicas_of(stage); ++replica) {
      positions.push_back(
          {static_cast<int>(positions.size()), stage, replica, config.replicas_of(stage)});
    }
  }
  return positions;
}

int one_f_one_b_warm_up(const ScheduleConfig& config, int stage) {
  const int replicas = config.replicas_of(stage);
  return (config.ranks_from(stage) + replicas - 1) / replicas - 1;
}

ActionList staggered_order(const Position& position, int64_t num_microbatches, int64_t ahead) {
  const int64_t own = position.num_own(num_microbatches);
  ActionList list;
  list.reserve(static_cast<std::size_t>(2 * own));
  for (int64_t turn = 0; turn < own + ahead; ++turn) {
    if (turn < own) {
      list.push_back(position.action(ActionKind::kForward, turn));
    }
    if (turn >= ahead) {
      list.push_back(position.action(ActionKind::kBackward, turn - ahead));
    }
  }
  return list;
}

}  // namespace millrace::internal
