// Costs of stages, and whole plans from profile to prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>

#include "millrace/core/profile.h"
#include "tests/sim/sim_testing.h"

namespace millrace {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::network;

// l0..l(n-1), 8 samples a microbatch; layer i costs (i + 1) x the unit.
Profile staircase(int n) {
  Profile profile;
  profile.model = "staircase";
  profile.samples_per_microbatch = 8;
  for (int i = 1; i <= n; ++i) {
    LayerProfile layer;
    layer.name = "l" + std::to_string(i - 1);
    layer.forward_s = 1.0 * i;
    layer.input_gradient_s = 0.5 * i;
    layer.weight_gradient_s = 1.5 * i;
    layer.update_s = 0.25 * i;
    layer.output_bytes = 80 * i;
    layer.parameter_bytes = 100 * i;
    layer.stash_bytes = 16 * i;
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  return profile;
}

Plan plan_of(const std::vector<int>& layers, const std::string& schedule, int microbatches,
             int replicas = 1) {
  Plan plan =
      testing::replicated(static_cast<int>(layers.size()), replicas, schedule, microbatches);
  int next = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (int l = 0; l < layers[s]; ++l) {
      plan.stages[s].layers.push_back("l" + std::to_string(next++));
    }
  }
  return plan;
}

TEST(StageCosts, SumTheLayersAndScaleToTheSamples) {
  const std::vector<StageCost> costs = stage_costs(plan_of({2, 1}, "1f1b", 1), staircase(3), 4);
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].forward_s, 1.5);  // half of 1 + 2
  EXPECT_EQ(costs[0].input_gradient_s, 0.75);
  EXPECT_EQ(costs[0].weight_gradient_s, 2.25);
  EXPECT_EQ(costs[0].update_s, 0.75);    // whatever the samples
  EXPECT_EQ(costs[0].output_bytes, 80);  // of the stage's last layer
  EXPECT_EQ(costs[0].parameter_bytes, 300);
  EXPECT_EQ(costs[0].stash_bytes, 24);
  EXPECT_EQ(costs[1].forward_s, 1.5);
  EXPECT_EQ(costs[1].parameter_bytes, 300);

  Plan wrong = plan_of({2, 1}, "1f1b", 1);
  wrong.stages[1].layers = {"dense"};
  const Error error = error_of([&] { stage_costs(wrong, staircase(3), 4); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.stage(), 1);
  EXPECT_THAT(error.what(), HasSubstr("`dense`"));
  EXPECT_EQ(error_of([&] { stage_costs(wrong, staircase(3), 0); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(StageCosts, SlotsAreWholeAndTheRestIsFree) {
  const std::vector<StageCost> costs = slot_costs(3, 2, 3);
  ASSERT_EQ(costs.size(), 3u);
  for (const StageCost& cost : costs) {
    EXPECT_EQ(cost.forward_s, 2);
    EXPECT_EQ(cost.input_gradient_s, 1.5);
    EXPECT_EQ(cost.input_gradient_s + cost.weight_gradient_s, 3);
    EXPECT_EQ(cost.update_s, 0);
    EXPECT_EQ(cost.output_bytes + cost.parameter_bytes + cost.stash_bytes, 0);
  }
}

TEST(SimulatePlan, SplitsTheBatchOverMicrobatchesAndReplicas) {
  const Cluster cluster = free_cluster(4);
  // Layers of 3 s x (1 + 2) and 3 s x 3 for 8 samples: two even stages of 9 s.
  const Profile profile = staircase(3);
  // 32 samples in 2 microbatches on 2 replicas: 8 samples at a time; (2 + 1) x 9 s, then the
  // update.
  const Simulation s = simulate_plan(plan_of({2, 1}, "gpipe", 2, 2), profile, cluster, 32);
  EXPECT_EQ(s.window_s, 27);
  EXPECT_EQ(s.step_s, 27.75);
  EXPECT_EQ(s.bubble_fraction, 1.0 / 3);
  EXPECT_EQ(s.ranks.size(), 4u);
  // Four times the microbatches at a quarter of the samples each.
  EXPECT_EQ(simulate_plan(plan_of({2, 1}, "gpipe", 8, 2), profile, cluster, 32).window_s, 9 * 2.25);
}

TEST(SimulatePlan, LeavesIdleWorkersOut) {
  Plan plan = plan_of({2, 1}, "1f1b", 4);
  plan.workers = 4;
  const Profile profile = staircase(3);
  const Simulation s = simulate_plan(plan, profile, free_cluster(4), 32);
  ASSERT_EQ(s.ranks.size(), 4u);
  EXPECT_EQ(s.total_slots, 2 * s.window_s);
  EXPECT_EQ(s.bubble_fraction, 1.0 / 5);
  EXPECT_EQ(s.ranks[3].busy_s, 0);
  EXPECT_EQ(s.ranks[3].bubble_fraction, 1);
  EXPECT_EQ(s.ranks[3].memory.total(), 0);
  EXPECT_EQ(s.ranks[3].peak_weight_versions, 0);
  EXPECT_TRUE(s.memory[3].empty());
  EXPECT_TRUE(s.trace.ranks[3].stages.empty());
  EXPECT_TRUE(s.trace.ranks[3].events.empty());
}

TEST(SimulatePlan, DataParallelPaysForItsReduction) {
  const Profile profile = staircase(2);
  const Cluster cluster = network(4, 100, 0);
  const Simulation s = simulate_plan(plan_of({2}, "1f1b", 1, 4), profile, cluster, 32);
  // 9 s of computing, 2 x 3/4 x 300 bytes / 100, 0.75 s of update.
  EXPECT_EQ(s.window_s, 9);
  EXPECT_EQ(s.step_s, 9 + 4.5 + 0.75);
  EXPECT_EQ(s.bubble_fraction, 0);
}

// The promise of the formula: a straight pipeline without a flush takes its slowest stage's time a
// minibatch.
TEST(SimulatePlan, ASteadyPeriodIsTheSlowestStage) {
  constexpr unsigned kSeed = 4;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int s = 1 + static_cast<int>(random() % 6);
    Profile profile = staircase(s);
    double slowest_s = 0;
    for (LayerProfile& layer : profile.layers) {
      layer.forward_s = 0.01 * static_cast<double>(1 + random() % 100);
      layer.input_gradient_s = 0.01 * static_cast<double>(random() % 100);
      layer.weight_gradient_s = 0.01 * static_cast<double>(random() % 100);
      layer.update_s = 0;
      slowest_s = std::max(slowest_s, layer.compute_s());
    }
    const Plan plan = plan_of(std::vector<int>(s, 1), "pipedream", 1);
    const Simulation simulation = simulate_plan(plan, profile, free_cluster(s), 8);
    EXPECT_NEAR(simulation.step_s, slowest_s, 1e-9 * slowest_s)
        << "round " << round << " stages " << s;
  }
}

TEST(SimulatePlan, AnUpdateIsPartOfTheSteadyPeriod) {
  Profile profile = staircase(3);
  for (LayerProfile& layer : profile.layers) {
    layer = profile.layers[0];
  }
  for (int i = 0; i < 3; ++i) {
    profile.layers[i].name = "l" + std::to_string(i);
  }
  const Simulation s =
      simulate_plan(plan_of({1, 1, 1}, "pipedream", 1), profile, free_cluster(3), 8);
  EXPECT_NEAR(s.step_s, 3.25, 1e-12);
}

// Minibatches go to the replicas of a stage in turn: 9 s each on three, then 9 s and an update of
// 0.75 s on one.
TEST(SimulatePlan, AReplicatedStageCountsByItsReplicas) {
  Plan plan = plan_of({2, 1}, "pipedream", 1);
  plan.workers = 4;
  plan.stages[0].ranks = {0, 1, 2};
  plan.stages[1].ranks = {3};
  const Simulation s = simulate_plan(plan, staircase(3), free_cluster(4), 8);
  EXPECT_NEAR(s.step_s, 9.75, 1e-12);
  // With a flush the parts are dealt out in the same way: 3 x 2 of 8 samples.
  plan.schedule = "gpipe";
  plan.microbatches = 2;
  const Simulation flush = simulate_plan(plan, staircase(3), free_cluster(4), 48);
  EXPECT_EQ(flush.ranks[0].busy_s, 2 * 9);
  EXPECT_EQ(flush.ranks[3].busy_s, 6 * 9);
}

TEST(SimulatePlan, PassesRefusalsThrough) {
  const Profile profile = staircase(3);
  const Cluster cluster = free_cluster(4);
  const auto code = [&](const Plan& plan, int64_t batch, const std::string& policy = "") {
    return error_of([&] { simulate_plan(plan, profile, cluster, batch, {.policy = policy}); })
        .code();
  };
  EXPECT_EQ(code(plan_of({2, 1}, "pipedream", 4), 8), ErrorCode::kUnsupported);
  EXPECT_EQ(code(plan_of({2, 1}, "1f1b", 4), 8, "stash"), ErrorCode::kUnsupported);
  EXPECT_EQ(code(plan_of({2, 1}, "1f2b", 4), 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plan_of({2, 1}, "1f1b", 4), 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Plan{}, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plan_of({2, 1}, "1f1b", 1, 3), 9),
            ErrorCode::kInvalidArgument);  // 6 ranks, 4 devices
}

}  // namespace
}  // namespace millrace
