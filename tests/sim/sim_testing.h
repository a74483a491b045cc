// Clusters, hand-written programs and a checker of simulated traces, for the simulator's tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/core/cluster.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/sim/simulate.h"

namespace millrace::testing {

inline Cluster network(int size, double bandwidth_bytes_per_s, double latency_s) {
  Cluster cluster;
  NetworkLevel level;
  level.size = size;
  level.bandwidth_bytes_per_s = bandwidth_bytes_per_s;
  level.latency_s = latency_s;
  cluster.levels = {level};
  return cluster;
}

// A flush program written out: {"0F0 0SEND_F0>1", "1RECV_F0<0 1F0"}; one stage a rank, unless the
// stages of each rank are given.
inline LoweredSchedule program(const std::vector<std::string>& lists,
                               std::vector<std::vector<int>> rank_stages = {}) {
  LoweredSchedule lowered;
  lowered.name = "by-hand";
  lowered.policy = "flush";
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    lowered.ranks.push_back(parse_actions(lists[rank]));
    if (rank_stages.size() == rank) {
      rank_stages.push_back({static_cast<int>(rank)});
    }
    for (const int stage : rank_stages[rank]) {
      lowered.num_stages = std::max(lowered.num_stages, stage + 1);
      lowered.stage_ranks.resize(static_cast<std::size_t>(lowered.num_stages));
      lowered.stage_ranks[static_cast<std::size_t>(stage)].push_back(static_cast<int>(rank));
    }
  }
  lowered.rank_stages = std::move(rank_stages);
  return lowered;
}

// A stage: F of f seconds, B of b seconds, a border of `output_bytes`.
inline StageCost stage(double f, double b, int64_t output_bytes = 0, int64_t parameter_bytes = 0) {
  StageCost cost;
  cost.forward_s = f;
  cost.input_gradient_s = b / 2;
  cost.weight_gradient_s = b / 2;
  cost.output_bytes = output_bytes;
  cost.parameter_bytes = parameter_bytes;
  return cost;
}

inline LoweredSchedule straight(const std::string& name, int ranks, int microbatches,
                                int64_t num_steps = 1) {
  return lower(make_schedule(name, {ranks, microbatches}), num_steps);
}

// A plan of `stages` stages of `replicas` ranks, with no layers: for lowering alone.
inline Plan replicated(int stages, int replicas, const std::string& schedule, int microbatches) {
  Plan plan;
  plan.schedule = schedule;
  plan.microbatches = microbatches;
  plan.workers = stages * replicas;
  for (int s = 0; s < stages; ++s) {
    PlanStage entry;
    for (int r = 0; r < replicas; ++r) {
      entry.ranks.push_back(s * replicas + r);
    }
    plan.stages.push_back(entry);
  }
  return plan;
}

inline const TraceEvent& event(const Simulation& simulation, int rank, const std::string& action) {
  for (const TraceEvent& e : simulation.trace.ranks.at(rank).events) {
    Action bare = e.action;
    bare.version = kNone;
    if (to_string(bare) == action) {
      return e;
    }
  }
  ADD_FAILURE() << "rank " << rank << " never did " << action;
  static const TraceEvent none;
  return none;
}

template <typename Run>
Error error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "nothing was thrown"};
}

// Holds a trace against the rules of time, knowing nothing of the engine: ranks work without
// overlap and never pause but for a message or a reduction; every sent message is received once,
// with its bytes, exactly when its link can have carried it. These constraints leave one trace
// only.
inline void expect_consistent(const SimulationInput& input, const Simulation& simulation) {
  struct Sent {
    double arrival_s = 0;
    int64_t bytes = 0;
  };
  // By rank and stage of the sender, then of the receiver; microbatch.
  std::map<std::tuple<int, int, int, int, int64_t>, Sent> sent;
  const double overhead_s = input.cluster.action_overhead_s;
  for (const RankTrace& rank : simulation.trace.ranks) {
    std::map<int, double> free_s;  // of the link to each peer
    for (const TraceEvent& e : rank.events) {
      if (is_send(e.action.kind)) {
        const int to = e.action.peer;
        const double wire_s =
            static_cast<double>(e.bytes) / input.cluster.bandwidth_between(rank.rank, to);
        free_s[to] = std::max(free_s[to], e.end_s) + wire_s;
        const bool added =
            sent.emplace(
                    std::tuple(rank.rank, e.action.stage, to, e.action.peer_stage, e.action.first),
                    Sent{free_s[to] + input.cluster.latency_between(rank.rank, to), e.bytes})
                .second;
        EXPECT_TRUE(added);
      }
    }
  }
  for (const RankTrace& rank : simulation.trace.ranks) {
    double clock_s = 0;
    for (const TraceEvent& e : rank.events) {
      ASSERT_EQ(e.start_s, clock_s)
          << "rank " << rank.rank << " paused before " << to_string(e.action);
      clock_s = e.end_s;
      if (is_compute(e.action.kind)) {
        const StageCost& cost = input.costs[e.action.stage];
        const double one_s = e.action.kind == ActionKind::kForward         ? cost.forward_s
                             : e.action.kind == ActionKind::kInputGradient ? cost.input_gradient_s
                             : e.action.kind == ActionKind::kWeightGradient
                                 ? cost.weight_gradient_s
                                 : cost.input_gradient_s + cost.weight_gradient_s;
        const double whole_s = static_cast<double>(e.action.num_microbatches()) * one_s;
        ASSERT_EQ(e.end_s, e.start_s + whole_s / input.cluster.speed_of(rank.rank) + overhead_s);
        ASSERT_EQ(e.wait_s, 0);
      } else if (is_receive(e.action.kind)) {
        const auto found = sent.find(std::tuple(e.action.peer, e.action.peer_stage, rank.rank,
                                                e.action.stage, e.action.first));
        ASSERT_NE(found, sent.end()) << to_string(e.action) << " received what nobody sent";
        ASSERT_EQ(e.end_s, std::max(e.start_s, found->second.arrival_s) + overhead_s);
        ASSERT_EQ(e.bytes, found->second.bytes);
        sent.erase(found);
      }
    }
  }
  EXPECT_TRUE(sent.empty()) << "a message was never received";
}

}  // namespace millrace::testing
