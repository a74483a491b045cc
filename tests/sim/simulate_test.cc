// Messages, devices and reductions against cases worked out by hand; refusals; properties of every
// trace.
#include "millrace/sim/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "tests/schedule/schedule_testing.h"
#include "tests/sim/sim_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::error_of;
using testing::event;
using testing::expect_consistent;
using ::testing::HasSubstr;
using testing::network;
using testing::program;
using testing::replicated;
using testing::stage;
using testing::straight;

TEST(Simulate, AMessageTakesItsBytesOverBandwidthPlusLatency) {
  const LoweredSchedule lowered = straight("1f1b", 2, 1);
  const Cluster cluster = network(2, 100, 0.25);
  const Simulation s = simulate({lowered, {stage(1, 2, 50), stage(1, 2, 999)}, cluster});
  // F to 1, wire to 1.5, there at 1.75; F to 2.75, B to 4.75; back at 5.5; B to 7.5. The last
  // output goes nowhere.
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").start_s, 0);
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").end_s, 1.75);
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").wait_s, 1.75);
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").bytes, 50);
  EXPECT_EQ(event(s, 0, "0SEND_F0>1").bytes, 50);
  EXPECT_EQ(event(s, 0, "0SEND_F0>1").end_s, 1);  // the sender goes on at once
  EXPECT_EQ(event(s, 0, "0RECV_B0<1").end_s, 5.5);
  EXPECT_EQ(event(s, 0, "0RECV_B0<1").wait_s, 4.5);
  EXPECT_EQ(s.step_s, 7.5);
  EXPECT_EQ(s.window_s, 7.5);
  EXPECT_EQ(s.bubble_fraction, (15 - 6) / 15.0);
  EXPECT_EQ(s.trace.ranks[0].compute_s, 3);
  EXPECT_EQ(s.trace.ranks[0].wait_s, 4.5);
  EXPECT_EQ(s.trace.source, "simulated");
}

// Stages 0, 2 and 1, 3: one microbatch goes to and fro, 1 s on the wire each time.
TEST(Simulate, TwoChunksARank) {
  const LoweredSchedule lowered = program(
      {"0F0@0 0SEND_F0>1 2RECV_F0<1 2F0@0 2SEND_F0>1 2RECV_B0<1 2B0@0 2SEND_B0>1 0RECV_B0<1 0B0@0 "
       "0STEP0@1 2STEP0@1",
       "1RECV_F0<0 1F0@0 1SEND_F0>0 3RECV_F0<0 3F0@0 3B0@0 3SEND_B0>0 1RECV_B0<0 1B0@0 1SEND_B0>0 "
       "1STEP0@1 3STEP0@1"},
      {{0, 2}, {1, 3}});
  std::vector<StageCost> costs = {stage(1, 2, 100, 10), stage(1, 2, 100, 20), stage(1, 2, 100, 40),
                                  stage(1, 2, 999, 80)};
  costs[0].update_s = 0.25;
  costs[2].update_s = 0.5;
  for (StageCost& cost : costs) {
    cost.stash_bytes = 1000;
  }
  const Cluster cluster = network(2, 100, 0);
  const SimulationInput input{lowered, costs, cluster};
  const Simulation s = simulate(input);
  EXPECT_EQ(event(s, 1, "1F0").start_s, 2);
  EXPECT_EQ(event(s, 0, "2F0").start_s, 4);
  EXPECT_EQ(event(s, 1, "3F0").start_s, 6);
  EXPECT_EQ(event(s, 1, "3B0").end_s, 9);
  EXPECT_EQ(event(s, 0, "2B0").start_s, 10);
  EXPECT_EQ(event(s, 1, "1B0").start_s, 13);
  EXPECT_EQ(event(s, 0, "0B0").start_s, 16);
  EXPECT_EQ(event(s, 0, "0STEP0").end_s, 18.25);
  EXPECT_EQ(event(s, 0, "2STEP0").end_s, 18.75);
  EXPECT_EQ(s.step_s, 18.75);
  EXPECT_EQ(s.window_s, 18);
  EXPECT_EQ(s.bubble_fraction, 24 / 36.0);
  EXPECT_EQ(s.trace.ranks[1].stages, (std::vector<int>{1, 3}));
  EXPECT_EQ(s.trace.ranks[1].compute_s, 6);
  EXPECT_EQ(s.trace.ranks[0].wait_s, 3 + 5 + 4);  // for 2F, 2B and 0B
  EXPECT_EQ(s.ranks[0].peak_in_flight, 2) << "microbatch 0 on each of its stages";
  EXPECT_EQ(s.ranks[0].peak_stash_bytes, 2000);
  EXPECT_EQ(s.ranks[0].memory.weight_bytes, 50);
  EXPECT_EQ(s.ranks[1].memory.weight_bytes, 100);
  expect_consistent(input, s);
}

// In slots: rank 0 fills 2 (F + B) of each microbatch and waits for rank 1's turn at the start and
// the end.
TEST(Simulate, ChunksWithFreeMessagesOverlap) {
  const LoweredSchedule lowered =
      program({"0F0 0SEND_F0>1 0F1 0SEND_F1>1 2RECV_F0<1 2F0 2SEND_F0>1 2RECV_F1<1 2F1 2SEND_F1>1 "
               "2RECV_B0<1 2B0 2SEND_B0>1 2RECV_B1<1 2B1 2SEND_B1>1 0RECV_B0<1 0B0 0RECV_B1<1 0B1",
               "1RECV_F0<0 1F0 1SEND_F0>0 1RECV_F1<0 1F1 1SEND_F1>0 3RECV_F0<0 3F0 3B0 3SEND_B0>0 "
               "3RECV_F1<0 3F1 3B1 3SEND_B1>0 1RECV_B0<0 1B0 1SEND_B0>0 1RECV_B1<0 1B1 1SEND_B1>0"},
              {{0, 2}, {1, 3}});
  const Simulation s =
      simulate({lowered, std::vector<StageCost>(4, stage(1, 2)), network(2, 1e9, 0)});
  EXPECT_EQ(event(s, 0, "2F0").start_s, 2);
  EXPECT_EQ(event(s, 1, "3F0").start_s, 3);
  EXPECT_EQ(event(s, 1, "3B0").end_s, 6);
  EXPECT_EQ(event(s, 0, "2B0").end_s, 8);
  EXPECT_EQ(event(s, 1, "3B1").end_s, 9);
  EXPECT_EQ(event(s, 1, "1B0").start_s, 9);
  EXPECT_EQ(event(s, 0, "2B1").start_s, 9);
  EXPECT_EQ(event(s, 0, "0B0").start_s, 11);
  EXPECT_EQ(event(s, 1, "1B1").end_s, 13);
  EXPECT_EQ(event(s, 0, "0B1").end_s, 15);
  EXPECT_EQ(s.step_s, 15);
  EXPECT_EQ(s.idle_slots, 2 * 15 - 2 * 12);
}

// A stage and the next but two are on one rank: two messages of one microbatch are under way
// between the same ranks, one after the other on the wire, each with its own bytes.
TEST(Simulate, TwoMessagesOfOneMicrobatchBetweenTwoRanks) {
  LoweredSchedule lowered = program({"0F0 0SEND_F0>1 0SEND_F0>1:3 2RECV_F0<1 2F0 2SEND_F0>1",
                                     "1RECV_F0<0 1F0 1SEND_F0>0 3RECV_F0<0:0 3RECV_F0<0 3F0"},
                                    {{0, 2}, {1, 3}});
  lowered.links = {{0, 1}, {0, 3}, {1, 2}, {2, 3}};
  const Cluster cluster = network(2, 100, 0);
  SimulationInput input{lowered, std::vector<StageCost>(4, stage(1, 2)), cluster};
  input.link_bytes = {100, 200, 50, 50};
  const Simulation s = simulate(input);
  EXPECT_EQ(event(s, 0, "0SEND_F0>1").bytes, 100);
  EXPECT_EQ(event(s, 0, "0SEND_F0>1:3").bytes, 200);
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").end_s, 2);
  EXPECT_EQ(event(s, 1, "3RECV_F0<0:0").start_s, 3);
  EXPECT_EQ(event(s, 1, "3RECV_F0<0:0").end_s, 4);  // on the wire from 2 on
  EXPECT_EQ(event(s, 1, "3RECV_F0<0:0").bytes, 200);
  EXPECT_EQ(event(s, 0, "2F0").start_s, 3.5);
  EXPECT_EQ(event(s, 1, "3RECV_F0<0").bytes, 50);
  EXPECT_EQ(event(s, 1, "3F0").start_s, 5);  // 2F0 to 4.5, then half a second

  lowered.ranks[1] = parse_actions("1RECV_F0<0 1F0 1SEND_F0>0 3RECV_F0<0 3F0");
  EXPECT_THAT(error_of([&] { simulate(input); }).message(),
              HasSubstr("sent and never received: 0SEND_F0>1:3 of rank 0"));
  lowered.ranks[0][1].peer_stage = 2;
  EXPECT_THAT(error_of([&] { simulate(input); }).message(), HasSubstr("is not one of 4 stages"));
}

// Each rank sums both stages with the other, in the order of stages, and each sum starts with the
// later one.
TEST(Simulate, StagesOnBothOfTwoRanksReduceOneAfterTheOther) {
  const LoweredSchedule lowered =
      program({"0F0 1F1 1B1 0B0 0REDUCE0-1 1REDUCE0-1 0NORM0-1 0STEP0-1 1STEP0-1",
               "0F1 1F0 1B0 0B1 0REDUCE0-1 1REDUCE0-1 0NORM0-1 0STEP0-1 1STEP0-1"},
              {{0, 1}, {0, 1}});
  Cluster cluster = network(2, 100, 0);
  cluster.relative_speed = {1, 0.5};
  const Simulation s = simulate({lowered, {stage(1, 2, 0, 400), stage(1, 2, 0, 800)}, cluster});
  EXPECT_EQ(event(s, 0, "0REDUCE0-1").start_s, 6);
  EXPECT_EQ(event(s, 0, "0REDUCE0-1").wait_s, 6);  // rank 1 takes 12 s
  const double first_s = cluster.all_reduce_s({0, 1}, 400);
  const double second_s = cluster.all_reduce_s({0, 1}, 800);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(event(s, rank, "0REDUCE0-1").end_s, 12 + first_s);
    EXPECT_EQ(event(s, rank, "1REDUCE0-1").start_s, 12 + first_s);
    EXPECT_EQ(event(s, rank, "1REDUCE0-1").wait_s, 0);
    EXPECT_EQ(event(s, rank, "0NORM0-1").start_s, 12 + first_s + second_s);
    EXPECT_EQ(event(s, rank, "1STEP0-1").end_s,
              12 + first_s + second_s + cluster.all_reduce_s({0, 1}, 8));
  }
}

// All ranks wait for the last, then sum 8 bytes around the ring of all of them.
TEST(Simulate, ANormStartsWithTheLastRankAndCostsAnAllReduceOf8Bytes) {
  const Plan plan = replicated(2, 2, "gpipe", 1);
  const LoweredSchedule lowered =
      lower(make_schedule("gpipe", schedule_config(plan)), plan, 1, chain_links(2), true);
  const Cluster cluster = network(4, 100, 0.25);
  const Simulation s = simulate({lowered, {stage(1, 2), stage(1, 2)}, cluster});
  const double all_reduce_s = cluster.all_reduce_s({0, 1, 2, 3}, 8);
  ASSERT_EQ(all_reduce_s, 2 * 3 / 4.0 * 8 / 100 + 6 * 0.25);
  double last_s = 0;
  for (int rank = 0; rank < 4; ++rank) {
    last_s = std::max(last_s, event(s, rank, rank < 2 ? "0NORM0-1" : "1NORM0-1").start_s);
  }
  for (int rank = 0; rank < 4; ++rank) {
    const TraceEvent& norm = event(s, rank, rank < 2 ? "0NORM0-1" : "1NORM0-1");
    EXPECT_EQ(norm.wait_s, last_s - norm.start_s) << rank;
    EXPECT_EQ(norm.end_s, last_s + all_reduce_s) << rank;
    EXPECT_EQ(norm.bytes, 8);
    EXPECT_EQ(event(s, rank, rank < 2 ? "0STEP0-1" : "1STEP0-1").start_s, norm.end_s);
  }
  // Several steps: every one has its own meeting.
  const Simulation steps = simulate({.lowered = lowered,
                                     .costs = {stage(1, 2), stage(1, 2)},
                                     .cluster = cluster,
                                     .num_steps = 3});
  EXPECT_EQ(event(steps, 3, "1NORM4-5").end_s, event(steps, 0, "0NORM4-5").end_s);
}

TEST(Simulate, ANormThatOneRankLacksIsADeadlockThatNamesIt) {
  const LoweredSchedule lowered = program({"0F0 0B0 0NORM0 0STEP0", "1F0 1B0 1STEP0"});
  const Error error = error_of([&] {
    simulate({lowered, {stage(1, 2), stage(1, 2)}, network(2, 100, 0)});
  });
  EXPECT_THAT(error.message(), HasSubstr("rank 0 waits in 0NORM0 for the other ranks"));
}

TEST(Simulate, ALinkCarriesOneMessageAtATimeInEachDirection) {
  const LoweredSchedule lowered = straight("gpipe", 2, 3);
  const Cluster cluster = network(2, 100, 1);
  const Simulation s = simulate({lowered, {stage(1, 2, 300), stage(1, 2)}, cluster});
  // Sent at 1, 2, 3; on the wire 1-4, 4-7, 7-10; latencies overlap.
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").end_s, 5);
  EXPECT_EQ(event(s, 1, "1RECV_F1<0").end_s, 8);
  EXPECT_EQ(event(s, 1, "1RECV_F2<0").end_s, 11);
  // Back: B ends at 14, 16, 18; on the wire 14-17, 17-20, 20-23.
  EXPECT_EQ(event(s, 0, "0RECV_B0<1").end_s, 18);
  EXPECT_EQ(event(s, 0, "0RECV_B1<1").end_s, 21);
  EXPECT_EQ(event(s, 0, "0RECV_B2<1").end_s, 24);
  EXPECT_EQ(s.step_s, 26);
}

TEST(Simulate, TheTwoDirectionsOfALinkDoNotDisturbEachOther) {
  const LoweredSchedule lowered =
      program({"0F0 0SEND_F0>1 0RECV_B1<1 0B1", "1F1 1SEND_B1>0 1RECV_F0<0 1F0"});
  const Cluster cluster = network(2, 100, 0);
  const Simulation s = simulate({lowered, {stage(1, 1, 200), stage(1, 1)}, cluster});
  EXPECT_EQ(event(s, 0, "0RECV_B1<1").end_s, 3);
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").end_s, 3);
}

TEST(Simulate, DifferentLinksCarryAtTheSameTime) {
  const LoweredSchedule lowered =
      program({"0F0 0SEND_F0>1", "1F1 1SEND_F1>2 1RECV_F0<0 1F0 1SEND_F0>2",
               "2RECV_F1<1 2F1 2RECV_F0<1 2F0"});
  Cluster cluster = network(3, 100, 0);
  const std::vector<StageCost> costs = {stage(1, 1, 200), stage(1, 1, 200), stage(1, 1)};
  const Simulation s = simulate({lowered, costs, cluster});
  EXPECT_EQ(event(s, 1, "1RECV_F0<0").end_s, 3);
  EXPECT_EQ(event(s, 2, "2RECV_F1<1").end_s, 3);
  EXPECT_EQ(event(s, 2, "2RECV_F0<1").end_s, 6);  // F on rank 1 to 4, wire to 6
  cluster.links = {{1, 2, 50, 0.5}};              // an override of one link
  const Simulation slow = simulate({lowered, costs, cluster});
  EXPECT_EQ(event(slow, 1, "1RECV_F0<0").end_s, 3);
  EXPECT_EQ(event(slow, 2, "2RECV_F1<1").end_s, 5.5);
  EXPECT_EQ(event(slow, 2, "2RECV_F0<1").end_s, 9.5);  // the link is free again at 5
}

TEST(Simulate, LevelsOfTheClusterCount) {
  Cluster cluster = network(2, 1000, 0);
  cluster.levels.push_back(network(2, 10, 0).levels[0]);
  const LoweredSchedule lowered = straight("1f1b", 4, 1);
  const Simulation s = simulate(
      {lowered, {stage(1, 1, 100), stage(1, 1, 100), stage(1, 1, 100), stage(1, 1)}, cluster});
  EXPECT_DOUBLE_EQ(event(s, 1, "1RECV_F0<0").end_s, 1.1);
  EXPECT_DOUBLE_EQ(event(s, 2, "2RECV_F0<1").end_s, 12.1);  // between machines: 10 s
  EXPECT_DOUBLE_EQ(event(s, 3, "3RECV_F0<2").end_s, 13.2);
}

TEST(Simulate, DevicesHaveSpeedsAndActionsAnOverhead) {
  Cluster cluster = free_cluster(2);
  cluster.relative_speed = {2.0, 0.5};
  const LoweredSchedule lowered = straight("1f1b", 2, 1);
  std::vector<StageCost> costs = {stage(1, 2), stage(1, 2)};
  costs[1].update_s = 0.25;
  Simulation s = simulate({lowered, costs, cluster});
  EXPECT_EQ(s.ranks[0].busy_s, 1.5);
  EXPECT_EQ(s.ranks[1].busy_s, 6);
  EXPECT_EQ(s.window_s, 7.5);
  EXPECT_EQ(event(s, 1, "1STEP0").end_s, 7);  // from 6.5, at half speed; ends before rank 0 does
  EXPECT_EQ(s.trace.ranks[1].update_s, 0.5);

  // 0F 0SEND | 1RECV 1F 1B 1SEND 1STEP | 0RECV 0B 0STEP, each an eighth longer.
  cluster.action_overhead_s = 0.125;
  s = simulate({lowered, costs, cluster});
  EXPECT_EQ(s.window_s,
            7.5 + 8 * 0.125);  // eight actions on the path; STEPs are outside the window
  EXPECT_EQ(s.step_s, 7.5 + 9 * 0.125);
  EXPECT_EQ(s.ranks[0].busy_s, 1.75);
}

TEST(Simulate, RangesAndHalvesCostWhatTheirPartsDo) {
  const LoweredSchedule lowered = program({"0F0-3 0I0-1 0W0-1 0B2-3 0STEP"});
  const Cluster cluster = free_cluster(1);
  StageCost cost;
  cost.forward_s = 1;
  cost.input_gradient_s = 2;
  cost.weight_gradient_s = 4;
  cost.update_s = 8;
  cost.stash_bytes = 10;
  const Simulation s = simulate({lowered, {cost}, cluster});
  EXPECT_EQ(event(s, 0, "0F0-3").end_s, 4);
  EXPECT_EQ(event(s, 0, "0I0-1").end_s, 8);
  EXPECT_EQ(event(s, 0, "0W0-1").end_s, 16);
  EXPECT_EQ(event(s, 0, "0B2-3").end_s, 28);
  EXPECT_EQ(s.window_s, 28);
  EXPECT_EQ(s.step_s, 36);
  EXPECT_EQ(s.ranks[0].peak_in_flight, 4);
  EXPECT_EQ(s.ranks[0].peak_stash_bytes, 40);
}

TEST(Simulate, AReductionStartsWithTheLastReplicaAndCostsAnAllReduce) {
  const Plan plan = replicated(1, 2, "1f1b", 2);
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  Cluster cluster = network(2, 100, 0.25);
  cluster.relative_speed = {1.0, 0.5};
  StageCost cost = stage(1, 2, 0, 400);
  cost.update_s = 1;
  const Simulation s = simulate({lowered, {cost}, cluster});
  // Computing to 6 and 12. Ring: 2(r-1)/r x 400 / 100 = 4 s and 2(r-1) latencies.
  const TraceEvent& early = event(s, 0, "0REDUCE0-3");
  const TraceEvent& late = event(s, 1, "0REDUCE0-3");
  EXPECT_EQ(early.start_s, 6);
  EXPECT_EQ(early.wait_s, 6);
  EXPECT_EQ(early.end_s, 16.5);
  EXPECT_EQ(early.bytes, 400);
  EXPECT_EQ(late.start_s, 12);
  EXPECT_EQ(late.wait_s, 0);
  EXPECT_EQ(late.end_s, 16.5);
  EXPECT_EQ(event(s, 0, "0STEP0-3").end_s, 17.5);
  EXPECT_EQ(s.step_s, 18.5);  // the slow device's update included
  EXPECT_EQ(s.window_s, 12);  // computing alone
  EXPECT_EQ(s.trace.ranks[0].wait_s, 6);
  EXPECT_EQ(s.trace.ranks[0].communicate_s, 4.5);
}

TEST(Simulate, AnyReplicaMayBeTheLastToReduce) {
  const Plan plan = replicated(1, 3, "1f1b", 2);
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  for (int slow = 0; slow < 3; ++slow) {
    Cluster cluster = network(3, 100, 0);
    cluster.relative_speed = {1.0, 1.0, 1.0};
    cluster.relative_speed[slow] = 0.5;
    const Simulation s = simulate({lowered, {stage(1, 2, 0, 300)}, cluster});
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(event(s, rank, "0REDUCE0-5").wait_s, rank == slow ? 0 : 6);
      EXPECT_EQ(event(s, rank, "0REDUCE0-5").end_s, 12 + 4);  // 2 x 2/3 x 300 / 100
    }
  }
}

TEST(Simulate, EveryStageReducesAmongItsOwnReplicas) {
  const Plan plan = replicated(2, 2, "1f1b", 3);
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  const Cluster cluster = network(4, 100, 0);
  const SimulationInput input{
      lowered, {stage(1, 2, 0, 100), stage(1, 2, 0, 700)}, cluster, "bsp", 2};
  const Simulation s = simulate(input);
  expect_consistent(input, s);
  // (M + S - 1) x 3 = 12; stage 1 is done computing at 1 + 3 x 3 = 10 and reduces for 7 s.
  EXPECT_EQ(event(s, 0, "0REDUCE0-5").end_s, 13);
  EXPECT_EQ(event(s, 2, "1REDUCE0-5").start_s, 10);
  EXPECT_EQ(event(s, 3, "1REDUCE0-5").end_s, 17);
  EXPECT_EQ(s.step_s, 17);
  // In the second step stage 1 takes its first microbatch when it is free, at 17: the update is
  // waited for.
  EXPECT_EQ(event(s, 1, "0F7").start_s, 13);
  EXPECT_EQ(event(s, 3, "1F7").start_s, 17);
}

TEST(Simulate, DeadlocksAreReportedWithTheGrid) {
  const LoweredSchedule lowered =
      program({"0RECV_B0<1 0F0 0SEND_F0>1 0B0 0STEP0", "1RECV_F0<0 1F0 1B0 1SEND_B0>0 1STEP0"});
  const Cluster cluster = free_cluster(2);
  const Error error = error_of([&] { simulate({lowered, slot_costs(2, 1, 2), cluster}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("deadlocks"), HasSubstr("rank 0 waits in 0RECV_B0<1 for rank 1"),
                    HasSubstr("rank 1 waits in 1RECV_F0<0 for rank 0"), HasSubstr("rank 0 |"),
                    HasSubstr(">0RECV_B0<1<"), HasSubstr(">1RECV_F0<0<")));
}

TEST(Simulate, AReplicaThatNeverReducesIsADeadlockOfTheOthers) {
  const Plan plan = replicated(1, 3, "gpipe", 2);
  LoweredSchedule lowered = lower(make_schedule("gpipe", schedule_config(plan)), plan, 1);
  auto& list = lowered.ranks[1];
  list.erase(std::find_if(list.begin(), list.end(),
                          [](const Action& a) { return a.kind == ActionKind::kReduce; }));
  const Cluster cluster = free_cluster(3);
  const Error error = error_of([&] { simulate({lowered, slot_costs(1, 1, 2), cluster}); });
  EXPECT_THAT(error.message(), AllOf(HasSubstr("rank 0 waits in 0REDUCE0-5 for the other replicas"),
                                     HasSubstr("rank 2 waits in 0REDUCE0-5")));
}

TEST(Simulate, AMessageThatNobodyTakesIsReported) {
  const Cluster cluster = free_cluster(2);
  const LoweredSchedule lost = program({"0F0 0SEND_F0>1 0F1 0SEND_F1>1", "1RECV_F0<0 1F0"});
  Error error = error_of([&] { simulate({lost, slot_costs(2, 1, 2), cluster}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("never received"), HasSubstr("0SEND_F1>1 of rank 0"),
                                     HasSubstr(">0SEND_F1>1<")));
  const LoweredSchedule twice = program({"0F0 0SEND_F0>1 0SEND_F0>1", "1F1 1RECV_F0<0 1F0"});
  error = error_of([&] { simulate({twice, slot_costs(2, 1, 2), cluster}); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("sent again"), HasSubstr("rank 0")));
}

TEST(Simulate, RefusesWhatDoesNotFitTogether) {
  const LoweredSchedule lowered = straight("1f1b", 2, 2);
  const LoweredSchedule segment = straight("pipedream", 2, 1, 5);
  const Cluster cluster = free_cluster(2);
  const Cluster small = free_cluster(1);
  const std::vector<StageCost> costs = slot_costs(2, 1, 2);
  const auto message = [](const auto& run) {
    const Error error = error_of(run);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return std::string(error.what());
  };
  EXPECT_THAT(message([&] {
                simulate({lowered, slot_costs(3, 1, 2), cluster});
              }),
              HasSubstr("costs of 2 stages, found 3"));
  EXPECT_THAT(message([&] {
                simulate({lowered, costs, small});
              }),
              HasSubstr("rank 1 needs a device"));
  EXPECT_THAT(message([&] {
                simulate({lowered, costs, cluster, "bsp", 0});
              }),
              HasSubstr("found 0"));
  EXPECT_THAT(message([&] {
                simulate({segment, costs, cluster, "bsp", 6});
              }),
              AllOf(HasSubstr("6 steps"), HasSubstr("lowered for 5")));
  EXPECT_THAT(message([&] { simulate({lowered, costs, cluster, "bps"}); }), HasSubstr("`bsp`"));
  EXPECT_THAT(message([&] {
                simulate({program({"0F0 4F0", "1F0"}), costs, cluster});
              }),
              AllOf(HasSubstr("4F0"), HasSubstr(">4F0<")));
  EXPECT_THAT(message([&] {
                simulate({program({"0F0 0SEND_B0>1", "1F0"}), costs, cluster});
              }),
              HasSubstr("0SEND_B0>1"));
  EXPECT_THAT(message([&] {
                simulate({program({"0F0 0SEND_F0>7", "1F0"}), costs, cluster});
              }),
              HasSubstr("0SEND_F0>7"));
}

// Random costs, speeds and networks through every schedule: each trace obeys the rules of time,
// loses no message, and comes out the same again.
TEST(Simulate, EveryTraceIsConsistentConservedAndDeterministic) {
  constexpr unsigned kSeed = 99;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  const auto number = [&random](double scale) {
    return scale * static_cast<double>(random() % 1000) / 1000.0;
  };
  int runs = 0;
  for (const ScheduleEntry& entry : schedules()) {
    const std::vector<ScheduleConfig> configs =
        testing::offered(entry, testing::from_to(1, 6), testing::from_to(1, 8));
    for (int round = 0; round < 20; ++round) {
      ScheduleConfig config = configs[random() % configs.size()];
      const int replicas = 1 + static_cast<int>(random() % 3);
      const int p = config.num_ranks;
      config.copies = replicas;
      if (entry.builtin->deals) {
        config.replicas.assign(static_cast<std::size_t>(p), replicas);
        config.num_ranks *= replicas;
        config.copies = 1;
      }
      const Schedule schedule = make_schedule(entry.name, config);
      const int64_t steps = 1 + static_cast<int64_t>(random() % (schedule.flush ? 3 : 8));
      const LoweredSchedule lowered = lower(schedule, steps);
      Cluster cluster = network(p * replicas, 100 + number(1000), number(0.1));
      cluster.relative_speed.clear();
      for (int d = 0; d < p * replicas; ++d) {
        cluster.relative_speed.push_back(0.5 + number(2));
      }
      cluster.action_overhead_s = number(0.01);
      std::vector<StageCost> costs;
      double work_s = 0;
      for (int s = 0; s < schedule.num_stages; ++s) {
        costs.push_back(stage(number(1), number(2), static_cast<int64_t>(random() % 500),
                              static_cast<int64_t>(random() % 3000)));
        costs.back().update_s = number(0.2);
        work_s += costs[s].forward_s + costs[s].input_gradient_s + costs[s].weight_gradient_s;
      }
      const SimulationInput input{lowered, costs, cluster, "bsp", steps};
      const Simulation simulation = simulate(input);
      expect_consistent(input, simulation);

      double done_s = 0;  // computing, at relative speed 1
      for (const RankTrace& rank : simulation.trace.ranks) {
        const auto computes =
            std::count_if(rank.events.begin(), rank.events.end(),
                          [](const auto& e) { return is_compute(e.action.kind); });
        done_s += (rank.compute_s - static_cast<double>(computes) * cluster.action_overhead_s) *
                  cluster.speed_of(rank.rank);
      }
      EXPECT_NEAR(done_s, work_s * static_cast<double>(schedule.num_microbatches * steps), 1e-9);
      EXPECT_GE(simulation.bubble_fraction, 0);
      EXPECT_LT(simulation.bubble_fraction, 1);
      EXPECT_LE(simulation.window_s, simulation.trace.window_s);

      const Simulation again = simulate(input);
      EXPECT_EQ(to_json(to_value(again.trace)), to_json(to_value(simulation.trace)));
      ++runs;
    }
  }
  EXPECT_GE(runs, 20 * 19);
}

}  // namespace
}  // namespace millrace
