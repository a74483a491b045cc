// Bytes alive over a simulated run, against sums worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/sim_testing.h"

namespace millrace {
namespace {

using testing::program;
using testing::stage;
using testing::straight;

using Curve = std::vector<std::pair<double, int64_t>>;

Curve curve_of(const Simulation& simulation, int rank) {
  Curve curve;
  for (const MemoryPoint& point : simulation.memory[rank]) {
    curve.emplace_back(point.time_s, point.bytes);
  }
  return curve;
}

// Two stages, stage 1 slow: what stage 0 sends waits to be taken.
TEST(SimulatedMemory, GpipeByHand) {
  std::vector<StageCost> costs = {stage(1, 2, 7, 1000), stage(3, 2, 0, 2000)};
  costs[0].stash_bytes = 10;
  costs[1].stash_bytes = 20;
  const LoweredSchedule lowered = straight("gpipe", 2, 3);
  const Cluster cluster = free_cluster(2);
  const Simulation s = simulate({lowered, costs, cluster});
  // Rank 0: F to 1, 2, 3; rank 1 takes at 1, 4, 7; its B end at 12, 14, 16.
  EXPECT_EQ(curve_of(s, 0), (Curve{{0, 3000},   // weights, gradients, one optimizer buffer
                                   {0, 3010},   // stash of F0
                                   {1, 3017},   // sent
                                   {1, 3010},   // taken at once
                                   {1, 3020},   // F1
                                   {2, 3027},   // sent
                                   {2, 3037},   // F2
                                   {3, 3044},   // sent
                                   {4, 3037},   // F1's output taken
                                   {7, 3030},   // F2's
                                   {12, 3037},  // gradient received
                                   {14, 3027},  // B0 frees its stash
                                   {14, 3020},  // and its gradient
                                   {14, 3027},
                                   {16, 3017},
                                   {16, 3010},
                                   {16, 3017},
                                   {18, 3007},
                                   {18, 3000}}));
  EXPECT_EQ(s.ranks[0].memory.weight_bytes, 1000);
  EXPECT_EQ(s.ranks[0].memory.gradient_bytes, 1000);
  EXPECT_EQ(s.ranks[0].memory.optimizer_bytes, 1000);
  EXPECT_EQ(s.ranks[0].memory.stash_bytes, 30);
  EXPECT_EQ(s.ranks[0].memory.border_bytes, 14);
  EXPECT_EQ(s.ranks[0].memory.workspace_bytes, 0);
  EXPECT_EQ(s.ranks[0].peak_stash_bytes, 30);
  EXPECT_EQ(s.ranks[1].memory.stash_bytes, 60);
  EXPECT_EQ(s.ranks[1].memory.border_bytes, 7);  // an input is released when its F ends
  EXPECT_EQ(s.ranks[1].memory.weight_bytes, 2000);
}

TEST(SimulatedMemory, OneForwardOneBackwardBoundsTheStash) {
  std::vector<StageCost> costs(4, stage(1, 2, 5, 100));
  for (int r = 0; r < 4; ++r) {
    costs[r].stash_bytes = 1000 * (r + 1);
  }
  const LoweredSchedule lowered = straight("1f1b", 4, 16);
  const Cluster cluster = free_cluster(4);
  const Simulation s = simulate({lowered, costs, cluster, "bsp", 2, 2});
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(s.ranks[r].peak_stash_bytes, (4 - r) * 1000 * (r + 1));
    EXPECT_EQ(s.ranks[r].memory.weight_bytes, 100);
    EXPECT_EQ(s.ranks[r].memory.optimizer_bytes, 200);
    // The end is as the beginning: nothing leaks.
    EXPECT_EQ(s.memory[r].back().bytes, s.memory[r].front().bytes);
  }
}

TEST(SimulatedMemory, PipedreamKeepsAVersionForEachMinibatchInFlight) {
  const Cluster cluster = free_cluster(3);
  std::vector<StageCost> costs(3, stage(1, 2, 0, 100));
  costs[0].update_s = 0.5;
  const LoweredSchedule lowered = straight("pipedream", 3, 1, 12);
  const Simulation s = simulate({lowered, costs, cluster, "bsp", 12});
  EXPECT_EQ(s.ranks[0].memory.weight_bytes, 300);
  EXPECT_EQ(s.ranks[1].memory.weight_bytes, 200);
  EXPECT_EQ(s.ranks[2].memory.weight_bytes, 100);
  EXPECT_EQ(s.ranks[0].memory.gradient_bytes, 100);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(s.ranks[r].peak_weight_versions, 3 - r);
    EXPECT_EQ(s.memory[r].front().bytes, 300);
    EXPECT_EQ(s.memory[r].back().bytes, 300);  // drained: one version again
  }
  // Without stashing one version is enough.
  const LoweredSchedule latest = lower(make_schedule("pipedream", {3, 1}, "latest"), 12);
  EXPECT_EQ(simulate({latest, costs, cluster, "bsp", 12}).ranks[0].peak_weight_versions, 1);
}

// By hand on one rank: a version lives to the end of its last reader.
TEST(SimulatedMemory, AVersionGoesWithItsLastReader) {
  LoweredSchedule lowered =
      program({"0F0@0 0F1@0 0B0@0 0STEP0@1 0F2@1 0B1@0 0STEP1@2 0B2@1 0STEP2@3"});
  StageCost cost = stage(1, 2, 0, 8);
  cost.update_s = 0.5;
  const Cluster cluster = free_cluster(1);
  const Simulation s = simulate({lowered, {cost}, cluster, "bsp", 1, 0});
  EXPECT_EQ(curve_of(s, 0), (Curve{{0, 16},      // one version, one gradient
                                   {4, 24},      // STEP to 1 while F1 still needs 0
                                   {7.5, 16},    // B1 was the last to read 0
                                   {7.5, 24},    // STEP to 2 while F2 needs 1
                                   {10, 16}}));  // B2 done; STEP to 3 is in place
  EXPECT_EQ(s.ranks[0].peak_weight_versions, 2);
}

TEST(SimulatedMemory, HalvesHoldTheStashToW) {
  StageCost cost = stage(1, 2);
  cost.stash_bytes = 10;
  cost.kept_bytes = 10;
  const Cluster cluster = free_cluster(1);
  const LoweredSchedule lowered = program({"0F0 0I0 0F1 0I1 0W0 0W1 0STEP"});
  const Simulation s = simulate({lowered, {cost}, cluster});
  EXPECT_EQ(s.ranks[0].peak_in_flight, 2);
  EXPECT_EQ(curve_of(s, 0), (Curve{{0, 0}, {0, 10}, {2, 20}, {5, 10}, {6, 0}}));
  // Of which only part is for W.
  cost.kept_bytes = 4;
  EXPECT_EQ(curve_of(simulate({lowered, {cost}, cluster}), 0),
            (Curve{{0, 0}, {0, 10}, {2, 4}, {2, 14}, {4, 8}, {5, 4}, {6, 0}}));
}

// A backward that runs its forward again has all of one stash while it lasts.
TEST(SimulatedMemory, RecomputingKeepsLittleUntilTheBackward) {
  StageCost cost = stage(1, 2);
  cost.stash_bytes = 3;
  cost.recomputed_bytes = 10;
  cost.recompute_s = 1;
  const Cluster cluster = free_cluster(1);
  const Simulation s = simulate({program({"0F0 0F1 0B0 0B1 0STEP"}), {cost}, cluster});
  EXPECT_EQ(s.step_s, 2 * 1 + 2 * 3);
  EXPECT_EQ(curve_of(s, 0),
            (Curve{{0, 0}, {0, 3}, {1, 6}, {2, 16}, {5, 6}, {5, 3}, {5, 13}, {8, 3}, {8, 0}}));
}

TEST(SimulatedMemory, ForwardsAloneKeepNothing) {
  const Plan plan = testing::replicated(2, 2, "1f1b", 1);
  const LoweredSchedule lowered = lower_evaluation(plan, 5);
  std::vector<StageCost> costs(2, stage(1, 2, 3));
  costs[0].stash_bytes = 10;
  const Cluster cluster = free_cluster(4);
  const Simulation s = simulate({lowered, costs, cluster});
  EXPECT_EQ(s.ranks[0].peak_in_flight, 1);
  EXPECT_EQ(s.ranks[0].busy_s, 3);  // microbatches 0, 2, 4
  EXPECT_EQ(s.ranks[1].busy_s, 2);
  EXPECT_EQ(s.memory[0].back().bytes, s.memory[0].front().bytes);
}

}  // namespace
}  // namespace millrace
