// Lowering: golden texts, replicas, evaluation, and what is refused.
#include "millrace/schedule/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/base/error.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::plan_of;
using testing::plan_of_replicas;

// Case: two stages without a flush, three minibatches; forward versions v0, v0, v1 and v0, v1, v2.
TEST(Lower, PipedreamOfTwoStages) {
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {2, 1}), 3);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>1 0F1@0 0SEND_F1>1 0RECV_B0<1 0B0@0 0STEP0@1 "
            "0F2@1 0SEND_F2>1 0RECV_B1<1 0B1@0 0STEP1@2 0RECV_B2<1 0B2@1 0STEP2@3");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1STEP0@1 1RECV_F1<0 1F1@1 1B1@1 1SEND_B1>0 1STEP1@2 "
            "1RECV_F2<0 1F2@2 1B2@2 1SEND_B2>0 1STEP2@3");
  EXPECT_FALSE(lowered.flush);
  EXPECT_EQ(lowered.num_steps, 3);
  EXPECT_EQ(lowered.microbatches_per_step, 1);
  EXPECT_EQ(lowered.policy, "stash");
}

TEST(Lower, FlushStepOfThreeStages) {
  const LoweredSchedule lowered = lower(make_schedule("1f1b", {3, 2}), 5);
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1SEND_F0>2 1RECV_F1<0 1F1@0 1SEND_F1>2 1RECV_B0<2 1B0@0 1SEND_B0>0 "
            "1RECV_B1<2 1B1@0 1SEND_B1>0 1STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[2]),
            "2RECV_F0<1 2F0@0 2B0@0 2SEND_B0>1 2RECV_F1<1 2F1@0 2B1@0 2SEND_B1>1 2STEP0-1@1");
  EXPECT_EQ(lowered.num_steps, 1);  // one step is held, whatever was asked
  EXPECT_EQ(lowered.microbatches_per_step, 2);
}

TEST(Lower, ClippingPutsANormOfAllRanksBeforeEveryStep) {
  const Plan plan = plan_of(2, 2, 1);
  const LoweredSchedule lowered =
      lower(make_schedule("gpipe", schedule_config(plan)), plan, 1, chain_links(2), true);
  EXPECT_TRUE(lowered.ranks[4].empty()) << "an idle rank meets nobody";
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::string text = to_string(lowered.ranks[rank]);
    const std::string stage = text.substr(0, 1);
    EXPECT_THAT(text, ::testing::ContainsRegex(stage + "REDUCE[-0-9]* " + stage + "NORM[-0-9]* " +
                                               stage + "STEP[-0-9]*@1$"));
  }
  EXPECT_TRUE(find_faults(lowered).empty());
  const LoweredSchedule single =
      lower(make_schedule("pipedream", {1, 1}), plan_of(1, 1, 1), 2, chain_links(1), true);
  EXPECT_EQ(to_string(single.ranks[0]), "0F0@0 0B0@0 0NORM0 0STEP0@1 0F1@1 0B1@1 0NORM1 0STEP1@2");
  EXPECT_TRUE(find_faults(single).empty());
}

TEST(Lower, ClippingOfSeveralStagesWithoutAFlushIsRefusedWithTheReason) {
  try {
    lower(make_schedule("pipedream", {2, 1}), plan_of(2, 1, 1), 3, chain_links(2), true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.key(), "train.clip_norm");
    EXPECT_THAT(error.message(), HasSubstr("update at different times"));
    EXPECT_THAT(error.message(), HasSubstr("1f1b"));
  }
}

// Microbatches go round robin, here one to each replica.
TEST(Lower, ReplicasTakeMicrobatchesInTurnAndReduceBeforeTheStep) {
  Plan plan = plan_of(2, 2, 1);
  plan.stages[0].ranks = {3, 0};
  plan.stages[1].ranks = {1, 4};
  const LoweredSchedule lowered = lower(make_schedule("gpipe", schedule_config(plan)), plan, 1);
  EXPECT_EQ(to_string(lowered.ranks[3]), "0F0@0 0SEND_F0>1 0RECV_B0<1 0B0@0 0REDUCE0-1 0STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[0]), "0F1@0 0SEND_F1>4 0RECV_B1<4 0B1@0 0REDUCE0-1 0STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[1]), "1RECV_F0<3 1F0@0 1B0@0 1SEND_B0>3 1REDUCE0-1 1STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[4]), "1RECV_F1<0 1F1@0 1B1@0 1SEND_B1>0 1REDUCE0-1 1STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[2]), "");
  EXPECT_EQ(lowered.rank_stages, (std::vector<std::vector<int>>{{0}, {1}, {}, {0}, {1}}));
  EXPECT_EQ(lowered.replica_of(0, 0), 1);
  EXPECT_EQ(lowered.replica_of(4, 1), 1);
  EXPECT_EQ(lowered.replica_of(4, 0), -1);
  EXPECT_EQ(lowered.stage_ranks, (std::vector<std::vector<int>>{{3, 0}, {1, 4}}));
}

// Source: PipeDream, SOSP'19, section 3.2: 2-1 keeps ceil(3/2) = 2 minibatches in flight on each
// replica of the first stage, which updates every two minibatches. Minibatch 4 is a round of its
// own, in which replica 1 has nothing.
TEST(Lower, WithoutAFlushAStageUpdatesEveryRound) {
  Plan plan = plan_of_replicas({2, 1});
  const LoweredSchedule lowered = lower(make_schedule("pipedream", schedule_config(plan)), plan, 5);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>2 0F2@0 0SEND_F2>2 0RECV_B0<2 0B0@0 0REDUCE0-1 0STEP0-1@1 "
            "0F4@1 0SEND_F4>2 0RECV_B2<2 0B2@0 0REDUCE2-3 0STEP2-3@2 "
            "0RECV_B4<2 0B4@1 0REDUCE4 0STEP4@3");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "0F1@0 0SEND_F1>2 0F3@0 0SEND_F3>2 0RECV_B1<2 0B1@0 0REDUCE0-1 0STEP0-1@1 "
            "0RECV_B3<2 0B3@0 0REDUCE2-3 0STEP2-3@2 0REDUCE4 0STEP4@3");
  EXPECT_EQ(to_string(lowered.ranks[2]).substr(0, 74),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1STEP0@1 1RECV_F1<1 1F1@1 1B1@1 1SEND_B1");
  EXPECT_EQ(lowered.round_steps, 2);

  plan.update = UpdateRule::kStep;
  const LoweredSchedule together =
      lower(make_schedule("pipedream", schedule_config(plan)), plan, 4);
  EXPECT_EQ(to_string(together.ranks[2]),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1RECV_F1<1 1F1@0 1B1@0 1SEND_B1>1 1STEP0-1@1 "
            "1RECV_F2<0 1F2@1 1B2@1 1SEND_B2>0 1RECV_F3<1 1F3@1 1B3@1 1SEND_B3>1 1STEP2-3@2");
}

TEST(Lower, VerticalSyncReadsWhatStageZeroRead) {
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {2, 1}, "vertical_sync"), 3);
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1STEP0@1 1RECV_F1<0 1F1@0 1B1@0 1SEND_B1>0 1STEP1@2 "
            "1RECV_F2<0 1F2@1 1B2@1 1SEND_B2>0 1STEP2@3");
}

const std::vector<std::vector<int>> kShapes = {{1},    {2},    {3, 1},    {2, 1, 1}, {1, 2},
                                               {2, 2}, {2, 3}, {4, 1, 2}, {1, 1, 3}, {12, 1, 1}};

// Unequal numbers of replicas: only of schedules that deal to them.
TEST(Lower, ReplicatedPlansRunForEveryScheduleThatDeals) {
  for (const ScheduleEntry& entry : schedules()) {
    if (!entry.builtin->deals) {
      Plan plan = testing::plan_of_replicas({2, 1});
      plan.schedule = entry.name;
      EXPECT_THROW(schedule_config(plan), Error) << entry.name;
      continue;
    }
    for (const std::vector<int>& replicas : kShapes) {
      for (const int microbatches : {1, 2, 5}) {
        Plan plan = testing::plan_of_replicas(replicas);
        plan.microbatches = microbatches;
        plan.workers += 2;
        const ScheduleConfig config = schedule_config(plan);
        if (entry.builtin->offers(config)) {
          continue;
        }
        for (const std::string& policy : entry.builtin->policies()) {
          for (const UpdateRule update : {UpdateRule::kRound, UpdateRule::kStep}) {
            plan.update = update;
            const Schedule schedule = make_schedule(entry.name, config, policy);
            const bool unequal = std::any_of(replicas.begin(), replicas.end(),
                                             [&](int count) { return count != replicas.front(); });
            if (policy == "vertical_sync" && unequal && update == UpdateRule::kRound) {
              EXPECT_THROW(lower(schedule, plan, 3), Error);
              continue;
            }
            for (const int64_t steps : {1, 2, 5, 12, 31}) {
              SCOPED_TRACE(::testing::Message()
                           << entry.name << " " << describe(plan) << " " << policy << " "
                           << to_string(update) << " M=" << microbatches << " steps=" << steps);
              const LoweredSchedule lowered = lower(schedule, plan, steps);
              EXPECT_EQ(testing::rehearse(lowered), "");
              EXPECT_TRUE(find_faults(lowered).empty());
              EXPECT_EQ(lowered.ranks.size(), static_cast<std::size_t>(plan.workers));
              if (schedule.flush) {
                break;
              }
            }
          }
        }
      }
    }
  }
}

// A skip edge from stage 0 to stage 2: straight from its maker to its user, and back.
TEST(Lower, SkipEdgesGoStraight) {
  const Plan plan = plan_of(3, 1);
  const std::vector<StageLink> links = {{0, 1}, {0, 2}, {1, 2}};
  const LoweredSchedule lowered = lower(make_schedule("1f1b", {3, 1}), plan, 1, links);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>1 0SEND_F0>2:2 0RECV_B0<1 0RECV_B0<2:2 0B0@0 0STEP0@1");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1SEND_F0>2 1RECV_B0<2 1B0@0 1SEND_B0>0 1STEP0@1");
  EXPECT_EQ(to_string(lowered.ranks[2]),
            "2RECV_F0<0:0 2RECV_F0<1 2F0@0 2B0@0 2SEND_B0>0:0 2SEND_B0>1 2STEP0@1");
  EXPECT_TRUE(find_faults(lowered).empty());
  LoweredSchedule lost = lowered;
  lost.ranks[0].erase(lost.ranks[0].begin() + 2);
  EXPECT_FALSE(find_faults(lost).empty());
}

TEST(Lower, TwoChunksARank) {
  const Schedule schedule = testing::chunked_schedule();
  EXPECT_NO_THROW(validate(schedule));
  const LoweredSchedule lowered = lower(schedule, 1);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>1 0F1@0 0SEND_F1>1 2RECV_F0<1 2F0@0 2SEND_F0>1 2RECV_F1<1 2F1@0 "
            "2SEND_F1>1 2RECV_B0<1 2B0@0 2SEND_B0>1 2RECV_B1<1 2B1@0 2SEND_B1>1 0RECV_B0<1 0B0@0 "
            "0RECV_B1<1 0B1@0 0STEP0-1@1 2STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0@0 1SEND_F0>0 1RECV_F1<0 1F1@0 1SEND_F1>0 3RECV_F0<0 3F0@0 3B0@0 "
            "3SEND_B0>0 3RECV_F1<0 3F1@0 3B1@0 3SEND_B1>0 1RECV_B0<0 1B0@0 1SEND_B0>0 1RECV_B1<0 "
            "1B1@0 1SEND_B1>0 1STEP0-1@1 3STEP0-1@1");
  EXPECT_EQ(lowered.rank_stages, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(lowered.stage_ranks, (std::vector<std::vector<int>>{{0}, {1}, {0}, {1}}));
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

TEST(Lower, BetweenStagesOfOneRankNothingIsSent) {
  const LoweredSchedule lowered = lower(testing::v_schedule(), 1);
  EXPECT_EQ(
      to_string(lowered.ranks[0]),
      "0F0@0 0SEND_F0>1 3RECV_F0<1 3F0@0 3B0@0 3SEND_B0>1 0RECV_B0<1 0B0@0 0STEP0@1 3STEP0@1");
  EXPECT_EQ(
      to_string(lowered.ranks[1]),
      "1RECV_F0<0 1F0@0 2F0@0 2SEND_F0>0 2RECV_B0<0 2B0@0 1B0@0 1SEND_B0>0 1STEP0@1 2STEP0@1");
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

// Every rank meets the others in the order of stages, whichever way its microbatches go.
TEST(Lower, StagesOnBothOfTwoRanksAreReducedInTheirOrder) {
  const Schedule schedule = testing::bidirectional_schedule();
  EXPECT_NO_THROW(validate(schedule));
  const LoweredSchedule lowered =
      lower(schedule, plan_of_positions(schedule), 1, chain_links(2), true);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>1 1RECV_F1<1 1F1@0 1B1@0 1SEND_B1>1 0RECV_B0<1 0B0@0 0REDUCE0-1 "
            "1REDUCE0-1 0NORM0-1 0STEP0-1@1 1STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "0F1@0 0SEND_F1>0 1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 0RECV_B1<0 0B1@0 0REDUCE0-1 "
            "1REDUCE0-1 0NORM0-1 0STEP0-1@1 1STEP0-1@1");
  EXPECT_EQ(lowered.replica_of(0, 0), 0);
  EXPECT_EQ(lowered.replica_of(0, 1), 1);
  EXPECT_EQ(lowered.replica_of(1, 1), 0);
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

// Positions 0 and 1 stand on world ranks 3 and 1; 0 and 2 are idle.
TEST(Lower, WorldRanksTakeThePlacesOfPositions) {
  Plan plan;
  plan.workers = 4;
  for (const int rank : {3, 1, 3, 1}) {
    plan.stages.push_back({.layers = {}, .ranks = {rank}});
  }
  const LoweredSchedule lowered = lower(testing::chunked_schedule(), plan, 1);
  EXPECT_EQ(lowered.rank_stages, (std::vector<std::vector<int>>{{}, {1, 3}, {}, {0, 2}}));
  EXPECT_EQ(to_string(lowered.ranks[3]).substr(0, 46),
            "0F0@0 0SEND_F0>1 0F1@0 0SEND_F1>1 2RECV_F0<1 2");
  EXPECT_EQ(to_string(lowered.ranks[1]).substr(0, 27), "1RECV_F0<3 1F0@0 1SEND_F0>3");
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

// From stage 0 to 2 on its own rank nothing is sent; to 3 beside the one to 1.
TEST(Lower, SkipEdgesOfChunks) {
  Schedule schedule = testing::chunked_schedule();
  const std::vector<StageLink> links = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {2, 3}};
  const LoweredSchedule lowered = lower(schedule, plan_of_positions(schedule), 1, links);
  EXPECT_THAT(to_string(lowered.ranks[0]),
              ::testing::StartsWith("0F0@0 0SEND_F0>1 0SEND_F0>1:3 0F1@0 0SEND_F1>1 0SEND_F1>1:3 "
                                    "2RECV_F0<1 2F0@0 2SEND_F0>1 "));
  EXPECT_THAT(to_string(lowered.ranks[0]), HasSubstr(" 0RECV_B0<1 0RECV_B0<1:3 0B0@0 "));
  EXPECT_THAT(to_string(lowered.ranks[1]),
              HasSubstr(" 3RECV_F0<0:0 3RECV_F0<0 3F0@0 3B0@0 3SEND_B0>0:0 3SEND_B0>0 "));
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());

  // One of the two messages of microbatch 0 lost, or taken for the other.
  LoweredSchedule damaged = lowered;
  damaged.ranks[0].erase(damaged.ranks[0].begin() + 2);
  EXPECT_FALSE(find_faults(damaged).empty());
  damaged = lowered;
  damaged.ranks[0][2].peer_stage = 1;
  EXPECT_FALSE(find_faults(damaged).empty());
  EXPECT_NE(testing::rehearse(damaged), "");
}

// Halves and ranges of several stages, with the updates of each right after its last W.
TEST(Lower, WithoutAFlushEachStageOfARankUpdatesOnItsOwn) {
  const Schedule schedule = testing::endless_schedule({"0F0-1 1F0 1F1 1I0 1I1 1W0-1 0B0 0I1 0W1"},
                                                      {{0}, {0}}, 2, "stash");
  EXPECT_NO_THROW(validate(schedule));
  const LoweredSchedule lowered = lower(schedule, 2);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0-1@0 1F0@0 1F1@0 1I0@0 1I1@0 1W0-1@0 1STEP0-1@1 0B0@0 0I1@0 0W1@0 0STEP0-1@1 "
            "0F2-3@1 1F2@1 1F3@1 1I2@1 1I3@1 1W2-3@1 1STEP2-3@2 0B2@1 0I3@1 0W3@1 0STEP2-3@2");
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

// Halves and ranges come with other schedules; lowering already places their messages and updates.
TEST(Lower, HalvesAndRanges) {
  Schedule schedule = make_schedule("1f1b", {2, 2});
  schedule.period = {parse_actions("0F0 0F1 0I0 0I1 0W0-1"), parse_actions("1F0-1 1I0-1 1W0 1W1")};
  const LoweredSchedule lowered = lower(schedule, 1);
  EXPECT_EQ(
      to_string(lowered.ranks[0]),
      "0F0@0 0SEND_F0>1 0F1@0 0SEND_F1>1 0RECV_B0<1 0I0@0 0RECV_B1<1 0I1@0 0W0-1@0 0STEP0-1@1");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1RECV_F1<0 1F0-1@0 1I0-1@0 1SEND_B0>0 1SEND_B1>0 1W0@0 1W1@0 1STEP0-1@1");
  EXPECT_TRUE(find_faults(lowered).empty());

  Schedule without = make_schedule("pipedream", {1, 1});
  without.period = {parse_actions("0F0 0I0 0W0")};
  EXPECT_EQ(to_string(lower(without, 2).ranks[0]),
            "0F0@0 0I0@0 0W0@0 0STEP0@1 0F1@1 0I1@1 0W1@1 0STEP1@2");
}

TEST(Lower, PositionsNeedNotBeInStageOrder) {
  Schedule schedule = make_schedule("1f1b", {2, 1});
  std::swap(schedule.period[0], schedule.period[1]);
  schedule.stage_ranks = {{1}, {0}};
  const LoweredSchedule lowered = lower(schedule, 1);
  EXPECT_EQ(to_string(lowered.ranks[1]), "0F0@0 0SEND_F0>0 0RECV_B0<0 0B0@0 0STEP0@1");
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

TEST(LowerEvaluation, ForwardsOnlyByReplicaInTurn) {
  const LoweredSchedule lowered = lower_evaluation(plan_of(2, 2, 1), 3);
  EXPECT_EQ(to_string(lowered.ranks[0]), "0F0 0SEND_F0>2 0F2 0SEND_F2>2");
  EXPECT_EQ(to_string(lowered.ranks[1]), "0F1 0SEND_F1>3");
  EXPECT_EQ(to_string(lowered.ranks[2]), "1RECV_F0<0 1F0 1RECV_F2<0 1F2");
  EXPECT_EQ(to_string(lowered.ranks[3]), "1RECV_F1<1 1F1");
  EXPECT_EQ(to_string(lowered.ranks[4]), "");
  EXPECT_EQ(lowered.policy, "");
}

TEST(LowerEvaluation, StagesOfOneRankSendNothing) {
  const Plan v = plan_of_positions(testing::v_schedule());
  const LoweredSchedule lowered = lower_evaluation(v, 2);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0 0SEND_F0>1 0F1 0SEND_F1>1 3RECV_F0<1 3F0 3RECV_F1<1 3F1");
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "1RECV_F0<0 1F0 1RECV_F1<0 1F1 2F0 2SEND_F0>0 2F1 2SEND_F1>0");
  EXPECT_TRUE(find_faults(lowered).empty());
  const LoweredSchedule both =
      lower_evaluation(plan_of_positions(testing::bidirectional_schedule()), 4);
  EXPECT_TRUE(find_faults(both).empty());
}

TEST(LowerEvaluation, EveryMicrobatchPassesEveryStageOnce) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int replicas = 1; replicas <= 3; ++replicas) {
      for (int64_t microbatches : {1, 2, 3, 7, 12}) {
        const LoweredSchedule lowered = lower_evaluation(plan_of(stages, replicas), microbatches);
        EXPECT_TRUE(find_faults(lowered).empty())
            << stages << " " << replicas << " " << microbatches;
        std::map<std::pair<int, int64_t>, int> forwards;
        for (const ActionList& list : lowered.ranks) {
          for (const Action& action : list) {
            EXPECT_EQ(action.version, kNone);
            forwards[{action.stage, action.first}] += action.kind == ActionKind::kForward ? 1 : 0;
          }
        }
        EXPECT_EQ(static_cast<int64_t>(forwards.size()), stages * microbatches);
        for (const auto& [what, count] : forwards) {
          EXPECT_EQ(count, 1) << "stage " << what.first << " microbatch " << what.second;
        }
      }
    }
  }
}

template <class Call>
void expect_refused(ErrorCode code, const std::string& part, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "expected an Error with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  }
}

TEST(LowerRefuses, PlansThatDoNotFit) {
  const Schedule flush = make_schedule("1f1b", {2, 4});
  const Schedule without = make_schedule("pipedream", {2, 1});
  expect_refused(ErrorCode::kInvalidArgument, "the plan has 3 stages",
                 [&] { lower(flush, plan_of(3, 1), 1); });
  expect_refused(ErrorCode::kInvalidArgument, "make the schedule for the plan's replicas",
                 [&] { lower(without, plan_of(2, 2), 4); });
  expect_refused(ErrorCode::kUnsupported, "set update = \"step\"", [&] {
    const Plan plan = plan_of_replicas({2, 1});
    lower(make_schedule("pipedream", schedule_config(plan), "vertical_sync"), plan, 4);
  });
  Plan twice = plan_of(2, 1);
  twice.stages[1].ranks = {0};
  expect_refused(ErrorCode::kInvalidArgument, "rank 0", [&] { lower(flush, twice, 1); });
  twice.stages[1].ranks = {-2};
  expect_refused(ErrorCode::kInvalidArgument, "rank -2", [&] { lower(flush, twice, 1); });
  expect_refused(ErrorCode::kInvalidArgument, "at least one stage",
                 [&] { lower(flush, Plan(), 1); });
  expect_refused(ErrorCode::kInvalidArgument, "no rank", [&] { lower(flush, plan_of(2, 0), 1); });
}

TEST(LowerRefuses, PlacesThatAreNotTheSchedules) {
  const Schedule chunked = testing::chunked_schedule();
  const auto plan = [](const std::vector<std::vector<int>>& stage_ranks) {
    Plan made;
    for (const std::vector<int>& ranks : stage_ranks) {
      made.stages.push_back({.layers = {}, .ranks = ranks});
    }
    return made;
  };
  expect_refused(ErrorCode::kInvalidArgument,
                 "puts the stages of position 0 on one rank, and the plan gives stage 2 rank 2, "
                 "where it gave another stage rank 0",
                 [&] {
                   lower(chunked, plan({{0}, {1}, {2}, {1}}), 1);
                 });
  expect_refused(ErrorCode::kInvalidArgument,
                 "the plan gives stage 1 rank 0, where it gave that rank to position 0", [&] {
                   lower(chunked, plan({{0}, {0}, {0}, {0}}), 1);
                 });
  expect_refused(ErrorCode::kInvalidArgument, "stage 2 has 2 ranks in the plan and 1 in schedule",
                 [&] {
                   lower(chunked, plan({{0}, {1}, {0, 2}, {1}}), 1);
                 });
  expect_refused(ErrorCode::kInvalidArgument, "the plan has 2 stages", [&] {
    lower(chunked, plan({{0}, {1}}), 1);
  });
  // The second stage's positions stand the other way round.
  expect_refused(ErrorCode::kInvalidArgument, "place the stages as the schedule does", [&] {
    lower(testing::bidirectional_schedule(), plan({{0, 1}, {0, 1}}), 1);
  });
  Schedule odd = chunked;
  odd.stage_ranks[3] = {7};
  expect_refused(ErrorCode::kInvalidArgument, "stage 3 stands on position 7; expected 0..1", [&] {
    lower(odd, plan({{0}, {1}, {0}, {1}}), 1);
  });
  odd = chunked;
  odd.num_ranks = 3;
  odd.period.resize(3);
  expect_refused(ErrorCode::kInvalidArgument, "position 2 holds no stage", [&] {
    lower(odd, plan({{0}, {1}, {0}, {1}}), 1);
  });
}

TEST(LowerRefuses, ActionsOfStagesThatThePositionDoesNotHold) {
  for (const bool flush : {true, false}) {
    Schedule schedule = testing::endless_schedule({"0F0 1F0 1B0 0B0", ""}, {{0}, {1}}, 1, "stash");
    if (flush) {
      schedule.flush = true;
      schedule.policy = "flush";
    }
    expect_refused(ErrorCode::kInvalidArgument, "found 1F0 on position 0",
                   [&] { lower(schedule, 2); });
  }
}

TEST(LowerRefuses, PoliciesThatNeedStagesThatUpdateTogether) {
  for (const char* policy : {"vertical_sync", "double_buffer", "vertical_newest"}) {
    Plan plan = plan_of_replicas({2, 1});
    Schedule schedule = make_schedule("pipedream", schedule_config(plan));
    schedule.policy = policy;
    expect_refused(ErrorCode::kUnsupported, "set update = \"step\"",
                   [&] { lower(schedule, plan, 4); });
    plan.update = UpdateRule::kStep;
    EXPECT_EQ(testing::rehearse(lower(schedule, plan, 8)), "") << policy;
  }
}

TEST(LowerRefuses, SchedulesThatCannotBeLowered) {
  const Schedule without = make_schedule("pipedream", {2, 1});
  expect_refused(ErrorCode::kInvalidArgument, "at least one step", [&] { lower(without, 0); });
  expect_refused(ErrorCode::kInvalidArgument, "at least one microbatch",
                 [&] { lower_evaluation(plan_of(1, 1), 0); });
  Schedule schedule = without;
  schedule.policy = "flush";
  expect_refused(ErrorCode::kInvalidArgument, "has no flush", [&] { lower(schedule, 2); });
  schedule = make_schedule("1f1b", {2, 1});
  schedule.stage_ranks = {{0}, {0}};
  expect_refused(ErrorCode::kInvalidArgument, "puts the stages of position 0 on one rank",
                 [&] { lower(schedule, plan_of(2, 1), 1); });
  schedule = make_schedule("1f1b", {2, 1});
  schedule.period[1] = parse_actions("1F0 1B0 1STEP0");
  expect_refused(ErrorCode::kInvalidArgument, "position 1", [&] { lower(schedule, 1); });
  schedule.period[1].clear();
  expect_refused(ErrorCode::kInvalidArgument, "nobody runs stage 1", [&] { lower(schedule, 1); });
  schedule.period.pop_back();
  expect_refused(ErrorCode::kInvalidArgument, "one action list", [&] { lower(schedule, 1); });
}

}  // namespace
}  // namespace millrace
