// The engine's part for sharded stages: when the replicas' GATHERs and REDUCEs end.
#include <algorithm>
#include <utility>

#include "millrace/schedule/shard.h"
#include "millrace/sim/internal/engine.h"

namespace millrace::internal {

// Half of an all-reduce, where the speed of these was measured; else nothing: messages then.
std::optional<double> Engine::shard_reduction_s(const std::vector<int>& ranks, double bytes) const {
  const NetworkLevel* level = &input_.cluster.level_between(ranks.front(), ranks[1]);
  for (const int rank : ranks) {
    if (rank != ranks.front()) {
      const NetworkLevel& other = input_.cluster.level_between(ranks.front(), rank);
      level = other.bandwidth_bytes_per_s < level->bandwidth_bytes_per_s ? &other : level;
    }
  }
  if (!input_.all_reduce_s && !level->all_reduce_bandwidth_bytes_per_s) {
    return std::nullopt;
  }
  return all_reduce_s(ranks, bytes) / 2;
}

// GATHER: each replica sends all others its shard of the weights. REDUCE: each sends every other
// one that one's shard of its gradient.
bool Engine::meet_shards(int rank) {
  const Action& action = next_action(rank).action;
  const bool gathers = action.kind == ActionKind::kGather;
  RankState& state = states_[rank];
  std::vector<ShardMeeting>& meetings = shard_meetings_[action.stage];
  std::vector<int> ranks = input_.lowered.stage_ranks[action.stage];
  std::sort(ranks.begin(), ranks.end());
  const int num_ranks = static_cast<int>(ranks.size());
  const auto own = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  const int64_t bytes = input_.costs[action.stage].parameter_bytes;
  const auto part_of = [&](int64_t member) {
    return bytes * (member + 1) / num_ranks - bytes * member / num_ranks;
  };
  std::size_t& done = state.num_shard_meetings[action.stage];
  if (done == meetings.size()) {
    meetings.push_back({0, 0, std::vector<double>(ranks.size(), 0.0)});
  }
  ShardMeeting& meeting = meetings[done];
  if (!state.shard_start_s) {
    state.shard_start_s = state.clock_s;
    ++meeting.num_asked;
    meeting.start_s = std::max(meeting.start_s, state.clock_s);
    for (std::size_t member = 0; member < ranks.size(); ++member) {
      if (ranks[member] == rank) {
        continue;
      }
      const int64_t part = part_of(gathers ? own : static_cast<int64_t>(member));
      double& here_s = meeting.parts_here_s[member];
      here_s = std::max(
          here_s, links_.carry(rank, ranks[member], state.clock_s, static_cast<double>(part)));
      if (meeting.num_asked == num_ranks) {
        wake(ranks[member]);
      }
    }
  }
  if (meeting.num_asked < num_ranks) {
    state.is_blocked = true;
    return false;
  }
  const double start_s = *std::exchange(state.shard_start_s, std::nullopt);
  ++done;
  const std::optional<double> reduction_s = shard_reduction_s(ranks, static_cast<double>(bytes));
  const double end_s = reduction_s
                           ? meeting.start_s + *reduction_s
                           : std::max(start_s, meeting.parts_here_s[static_cast<std::size_t>(own)]);
  const int64_t sent = gathers ? part_of(own) * (num_ranks - 1) : bytes - part_of(own);
  record(rank, start_s, end_s + input_.cluster.action_overhead_s, meeting.start_s - start_s, sent);
  return true;
}

void Engine::free(int rank) {
  const double start_s = states_[rank].clock_s;
  record(rank, start_s, start_s + input_.cluster.action_overhead_s, 0, 0);
}

}  // namespace millrace::internal
