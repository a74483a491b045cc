#include "millrace/replay/propose.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/replay/regroup.h"
#include "tests/replay/replay_testing.h"

namespace millrace {
namespace {

using testing::events;

constexpr int64_t kMb = 1 << 20;

// Two layers of 1 MiB of gradients each; backwards of 1 s for each layer.
Profile profile() {
  Profile profile;
  for (const char* name : {"first", "second"}) {
    LayerProfile layer;
    layer.name = name;
    layer.forward_s = 0.5;
    layer.input_gradient_s = 0.4;
    layer.weight_gradient_s = 0.6;
    layer.parameter_bytes = kMb;
    layer.stash_bytes = 1000;
    layer.output_bytes = 100;
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  return profile;
}

Plan plan() {
  Plan plan;
  plan.workers = 2;
  plan.stages.push_back({{"first", "second"}, {0, 1}});
  return plan;
}

// Two replicas: F 1 s, B 2 s, one reduction of 2 MiB after it: 0.2 s and 0.5 s a MiB.
Trace data_parallel() {
  Trace trace;
  trace.num_steps = 6;
  trace.ranks.resize(2);
  trace.ranks[1].rank = 1;
  for (int step = 0; step < 6; ++step) {
    const double t = 4.5 * step;
    const std::string m = std::to_string(step);
    for (RankTrace& rank : trace.ranks) {
      for (const TraceEvent& event : events({{"0F" + m, t, t + 1},
                                             {"0B" + m, t + 1, t + 3},
                                             {"0REDUCE" + m, t + 3, t + 4.2, 0, 2 * kMb},
                                             {"0STEP" + m, t + 4.2, t + 4.5}})) {
        rank.events.push_back(event);
      }
    }
  }
  trace.step_s = 4.5;
  return trace;
}

Recording recording() {
  const Trace trace = data_parallel();
  Cluster cluster = free_cluster(2);
  cluster.levels[0].latency_s = 0.1;  // 2(r-1) messages in a row: 0.2 s
  return typical(take_apart(trace, match_events(trace, true), &cluster));
}

TEST(ProposeTest, ReadinessAndLineComeFromProfileAndCluster) {
  const Recording taken = recording();
  const std::vector<StageCost> costs = stage_costs(plan(), profile(), 1);
  const Readiness readiness = readiness_of(taken, 0, costs[0].pieces);
  ASSERT_EQ(readiness.tensors.size(), 2U);
  EXPECT_FALSE(readiness.recorded);
  EXPECT_DOUBLE_EQ(readiness.tensors[0].ready_s, 1);  // the second layer's, half of the backward
  EXPECT_DOUBLE_EQ(readiness.tensors[1].ready_s, 2);
  EXPECT_DOUBLE_EQ(readiness.tensors[0].bytes, kMb);
  const ReductionLine line = fit_reductions(taken, 0);
  EXPECT_EQ(line.num_sizes, 1);
  EXPECT_NEAR(line.fixed_s, 0.2, 1e-9);
  EXPECT_NEAR(line.seconds(kMb), 0.7, 1e-9);
}

TEST(ProposeTest, RegroupedReductionsOverlapTheBackward) {
  const Recording taken = recording();
  const std::vector<StageCost> costs = stage_costs(plan(), profile(), 1);
  const Readiness readiness = readiness_of(taken, 0, costs[0].pieces);
  const ReductionLine line = fit_reductions(taken, 0);
  EXPECT_NEAR(replay(taken, 1).step_s, 4.5, 1e-9);
  // One by one: the first from 2.0 to 2.7, the second from 3.0 to 3.7.
  Recording split = regroup(taken, 0, readiness, {{0, 0}, {1, 1}}, line);
  EXPECT_NEAR(replay(split, 1).step_s, 4.0, 1e-9);
  // Joined again, as it was; whatever was asked for before is gone.
  EXPECT_NEAR(replay(regroup(split, 0, readiness, {{0, 1}}, line), 1).step_s, 4.5, 1e-9);
  // Asks of a run that asked for each are taken as recorded.
  const Readiness again = readiness_of(split, 0, costs[0].pieces);
  EXPECT_TRUE(again.recorded);
  EXPECT_NEAR(again.tensors[0].ready_s, 1, 1e-9);
  EXPECT_NEAR(again.tensors[1].ready_s, 2, 1e-9);
}

TEST(ProposeTest, TheLineThroughSeveralSizes) {
  Recording several;
  for (const double mb : {1.0, 2.0, 8.0}) {
    for (const double noise : {0.0, 0.001, -0.001}) {
      RecordedReduction reduction;
      reduction.ranks = {0, 1, 2};
      reduction.bytes = static_cast<int64_t>(mb * 1e6 * 4 / 3);  // 2(r-1)/r
      reduction.own_s = 0.3 + 0.25 * mb + noise;
      several.reductions.push_back(reduction);
    }
  }
  const ReductionLine line = fit_reductions(several, 0);
  EXPECT_EQ(line.num_sizes, 3);
  EXPECT_NEAR(line.fixed_s, 0.3, 1e-3);
  EXPECT_NEAR(line.byte_s, 0.25e-6, 1e-9);
}

TEST(ProposeTest, ProposesTheThresholdThatIsFastest) {
  const Recording taken = recording();
  const Plan the_plan = plan();
  const Profile the_profile = profile();
  const ProposalInput input{.recording = taken, .plan = the_plan, .profile = the_profile};
  const std::vector<Promise> promises = promise_thresholds(input);
  ASSERT_EQ(promises.size(), 2U);  // each by itself, or both
  EXPECT_EQ(promises[0].threshold_kib, 0);
  EXPECT_EQ(promises[0].num_messages, 2);
  EXPECT_NEAR(promises[0].step_s, 4.0, 1e-9);
  EXPECT_EQ(promises[1].threshold_kib, 2048);
  EXPECT_NEAR(promises[1].step_s, 4.5, 1e-9);
  const std::vector<Proposal> proposals = propose(input);
  ASSERT_FALSE(proposals.empty());
  EXPECT_EQ(proposals[0].kind, "gradient fusion");
  EXPECT_EQ(proposals[0].settings, "parallel.rule=gradient-flow rule.threshold_kib=0");
  EXPECT_NEAR(proposals[0].step_s, 4.0, 1e-9);
  // Recompute: a forward of 1 s more, and stashes of what the stage takes.
  const auto recompute = std::find_if(proposals.begin(), proposals.end(), [](const Proposal& each) {
    return each.kind == "recompute";
  });
  ASSERT_NE(recompute, proposals.end());
  EXPECT_NEAR(recompute->step_s, 5.5, 1e-9);
  // No layer without parameters, so no operators to join.
  EXPECT_TRUE(std::none_of(proposals.begin(), proposals.end(),
                           [](const Proposal& each) { return each.kind == "operator fusion"; }));
}

}  // namespace
}  // namespace millrace
