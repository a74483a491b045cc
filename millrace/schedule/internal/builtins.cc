#include "millrace/schedule/internal/builtins.h"

#include <algorithm>

namespace millrace::internal {

Placement looped_placement(int num_ranks, int chunks) {
  Placement placement;
  for (int stage = 0; stage < num_ranks * chunks; ++stage) {
    placement.push_back({stage % num_ranks});
  }
  return placement;
}

Placement v_placement(int num_ranks) {
  Placement placement;
  for (int stage = 0; stage < 2 * num_ranks; ++stage) {
    placement.push_back({std::min(stage, 2 * num_ranks - 1 - stage)});
  }
  return placement;
}

Placement both_ways(Placement down) {
  int last = 0;
  for (const std::vector<int>& positions : down) {
    last = std::max(last, positions.front());
  }
  for (std::vector<int>& positions : down) {
    positions.push_back(last - positions.front());
  }
  return down;
}

int chunks_of(const ScheduleConfig& config, int by_default) {
  return config.chunks == 0 ? by_default : config.chunks;
}

std::optional<std::string> refused_chunks(const ScheduleConfig& config, int chunks) {
  if (chunks_of(config, chunks) == chunks) {
    return std::nullopt;
  }
  return "its order is written for " + std::to_string(chunks) +
         (chunks == 1 ? " stage" : " stages") +
         " a rank of each direction, found chunks = " + std::to_string(config.chunks) +
         "; set chunks = " + std::to_string(chunks) + ", or take 1f1b-interleaved or breadth-first";
}

Schedule placed_schedule(const char* name, const ScheduleConfig& config, Placement placement,
                         bool flush) {
  Schedule schedule;
  schedule.name = name;
  schedule.flush = flush;
  schedule.num_ranks = config.num_ranks;
  schedule.num_stages = static_cast<int>(placement.size());
  schedule.num_microbatches = config.num_microbatches;
  schedule.period_microbatches = config.num_microbatches;
  schedule.stage_ranks = std::move(placement);
  for (ActionLists* part : {&schedule.prologue, &schedule.period, &schedule.epilogue}) {
    part->resize(static_cast<std::size_t>(config.num_ranks));
  }
  return schedule;
}

SlotFormula slots_of_rank(const ScheduleConfig& config, double busy, double idle, bool exact) {
  return {.window_slots = busy + idle, .idle_slots = config.num_ranks * idle, .exact = exact};
}

SlotFormula slots_of_loops(const ScheduleConfig& config, int chunks, double f, double b) {
  const int missing = std::max(0, config.num_ranks - config.num_microbatches);
  return slots_of_rank(config, chunks * config.num_microbatches * (f + b),
                       ((chunks - 1) * missing + config.num_ranks - 1) * (f + b));
}

void RankOrder::next(ActionKind kind, int stage, int64_t from) {
  list_.push_back(Action::of(kind, stage, from + nums_[{kind, stage}]++));
}

int64_t RankOrder::num(ActionKind kind, int stage) const {
  const auto found = nums_.find({kind, stage});
  return found == nums_.end() ? 0 : found->second;
}

std::vector<Route> two_routes(const Placement& placement, int64_t num_microbatches) {
  std::vector<Route> routes(2);
  for (const std::vector<int>& positions : placement) {
    routes[0].ranks.push_back(positions[0]);
    routes[1].ranks.push_back(positions[1]);
  }
  for (int64_t m = 0; m < num_microbatches; ++m) {
    routes[m < num_microbatches / 2 ? 0 : 1].microbatches.push_back(m);
  }
  return routes;
}

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
