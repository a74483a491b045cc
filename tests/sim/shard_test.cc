// Sharded stages simulated: memory, bytes and times against sums worked out by hand.
#include "millrace/schedule/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/sim/sim_testing.h"

namespace millrace {
namespace {

using testing::network;
using testing::stage;

constexpr int64_t kUnit = 1200;  // bytes of each stage's parameters

// `chunks` units on each of `replicas` ranks, breadth-first.
LoweredSchedule units(int chunks, int replicas, int microbatches, Shard shard) {
  Plan plan;
  for (int s = 0; s < chunks; ++s) {
    PlanStage& entry = plan.stages.emplace_back();
    entry.ranks.resize(static_cast<std::size_t>(replicas));
    std::iota(entry.ranks.begin(), entry.ranks.end(), 0);
  }
  plan.workers = replicas;
  plan.shard = shard;
  const ScheduleConfig config{
      .num_ranks = 1, .num_microbatches = microbatches, .chunks = chunks, .copies = replicas};
  return lower(make_schedule("breadth-first", config), plan, 1, chain_links(chunks));
}

Simulation run(const LoweredSchedule& lowered, const Cluster& cluster, int optimizer_buffers,
               int64_t num_steps = 1) {
  const std::vector<StageCost> costs(static_cast<std::size_t>(lowered.num_stages),
                                     stage(1, 2, 0, kUnit));
  SimulationInput input{.lowered = lowered, .costs = costs, .cluster = cluster};
  input.num_steps = num_steps;
  input.optimizer_buffers = optimizer_buffers;
  return simulate(input);
}

// Source: ZeRO, SC'20, section 5, in float32: with W, G, O bytes of weights, gradients and
// optimizer state, W + G + O/P, W + (G+O)/P, (W+G+O)/P, and besides the units that are whole for a
// while.
TEST(SimulatedShards, MemoryIsThatOfTheFormulas) {
  for (const int replicas : {2, 3, 4}) {
    for (const int chunks : {1, 4}) {
      for (const int optimizer_buffers : {1, 2}) {
        const int64_t all = kUnit * chunks;
        const auto memory = [&](Shard shard) {
          return run(units(chunks, replicas, 2, shard), free_cluster(replicas), optimizer_buffers)
              .ranks.back()
              .memory;
        };
        const MemoryUse none = memory(Shard::kNothing);
        EXPECT_EQ(none.weight_bytes + none.gradient_bytes + none.optimizer_bytes,
                  (2 + optimizer_buffers) * all);
        const MemoryUse zero1 = memory(Shard::kZero1);
        EXPECT_EQ(zero1.weight_bytes, all);
        EXPECT_EQ(zero1.gradient_bytes, all);
        EXPECT_EQ(zero1.optimizer_bytes, optimizer_buffers * all / replicas);
        const MemoryUse zero2 = memory(Shard::kZero2);
        EXPECT_EQ(zero2.weight_bytes, all);
        EXPECT_EQ(zero2.gradient_bytes, all / replicas + kUnit);
        EXPECT_EQ(zero2.optimizer_bytes, optimizer_buffers * all / replicas);
        const MemoryUse zero3 = memory(Shard::kZero3);
        EXPECT_EQ(zero3.weight_bytes, all / replicas + kUnit);
        EXPECT_EQ(zero3.gradient_bytes, all / replicas + kUnit);
        EXPECT_EQ(zero3.optimizer_bytes, optimizer_buffers * all / replicas);
      }
    }
  }
}

// Source: the same, section 7; per step and replica, for any number of microbatches.
TEST(SimulatedShards, BytesAreThoseOfTheFormulas) {
  for (const int replicas : {2, 3, 4}) {
    for (const int microbatches : {1, 3}) {
      const auto bytes = [&](Shard shard) {
        const Simulation s =
            run(units(4, replicas, microbatches, shard), free_cluster(replicas), 1);
        int64_t sum = 0;
        for (const TraceEvent& event : s.trace.ranks.front().events) {
          sum += event.bytes;
        }
        return sum;
      };
      const int64_t each = kUnit * (replicas - 1) / replicas;
      EXPECT_EQ(bytes(Shard::kZero1), 2 * 4 * each);
      EXPECT_EQ(bytes(Shard::kZero2), 2 * 4 * each);
      EXPECT_EQ(bytes(Shard::kZero3), (3 * 4 - 1) * each);
    }
  }
}

// Each of the other two sends 400 bytes at 100 a second, both at once, and 1 s of latency: 5 s.
TEST(SimulatedShards, PartsGoOverTheLinksAtOnce) {
  const Simulation s = run(units(1, 3, 1, Shard::kZero3), network(3, 100, 1), 1);
  EXPECT_DOUBLE_EQ(testing::event(s, 1, "0GATHER1").end_s, 5);
  EXPECT_DOUBLE_EQ(testing::event(s, 1, "0F1").end_s, 6);
  EXPECT_DOUBLE_EQ(testing::event(s, 1, "0B1").end_s, 8);
  EXPECT_DOUBLE_EQ(testing::event(s, 1, "0REDUCE1").end_s, 13);
  EXPECT_DOUBLE_EQ(s.step_s, 13);
}

// A reduction that was measured: half of it, from when the last replica asks. The slower device
// computes twice as long.
TEST(SimulatedShards, MeasuredReductionsTakeHalfTheirTime) {
  Cluster cluster = network(2, 1e9, 0);
  cluster.relative_speed = {1, 0.5};
  cluster.levels.front().all_reduce_bandwidth_bytes_per_s = 100;
  cluster.levels.front().all_reduce_latency_s = 2;
  const double all_reduce_s = cluster.all_reduce_s({0, 1}, static_cast<double>(kUnit));
  const Simulation s = run(units(1, 2, 1, Shard::kZero1), cluster, 1);
  const TraceEvent reduce = testing::event(s, 0, "0REDUCE0-1");
  EXPECT_DOUBLE_EQ(reduce.start_s, 3);
  EXPECT_DOUBLE_EQ(reduce.wait_s, 3);
  EXPECT_DOUBLE_EQ(reduce.end_s, 6 + all_reduce_s / 2);
  EXPECT_DOUBLE_EQ(testing::event(s, 0, "0GATHER0-1").end_s, 6 + all_reduce_s);
  EXPECT_DOUBLE_EQ(testing::event(s, 1, "0GATHER0-1").end_s, 6 + all_reduce_s);
}

TEST(SimulatedShards, AnUpdateIsOfTheShard) {
  Profile profile;
  profile.samples_per_microbatch = 1;
  LayerProfile& layer = profile.layers.emplace_back();
  layer.name = "only";
  layer.update_s = 6;
  Plan plan;
  plan.stages = {{.layers = {"only"}, .ranks = {0, 1, 2}}};
  plan.workers = 3;
  EXPECT_EQ(stage_costs(plan, profile, 1).front().update_s, 6);
  plan.shard = Shard::kZero1;
  EXPECT_EQ(stage_costs(plan, profile, 1).front().update_s, 2);
}

TEST(SimulatedShards, AStepStandsForAll) {
  const LoweredSchedule lowered = units(2, 2, 2, Shard::kZero3);
  const Cluster cluster = network(2, 100, 1);
  const double one_s = run(lowered, cluster, 1).step_s;
  const Simulation three = run(lowered, cluster, 1, 3);
  EXPECT_NEAR(three.trace.window_s, 3 * one_s, 1e-9);
  EXPECT_EQ(three.ranks[0].memory.weight_bytes,
            run(lowered, cluster, 1).ranks[0].memory.weight_bytes);
}

}  // namespace
}  // namespace millrace
