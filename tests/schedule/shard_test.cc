// The sharding pass: lists by hand, counts by formula, what is refused, and what validation finds.
#include "millrace/schedule/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::plan_of;

// `chunks` stages, each on all of `replicas` ranks: plain data parallelism in `chunks` units.
Plan units(int chunks, int replicas, Shard shard) {
  Plan plan;
  for (int stage = 0; stage < chunks; ++stage) {
    plan.stages.push_back({.layers = {}, .ranks = testing::from_to(0, replicas - 1)});
  }
  plan.workers = replicas;
  plan.shard = shard;
  return plan;
}

LoweredSchedule lowered_units(const std::string& schedule, int chunks, int replicas,
                              int microbatches, Shard shard, bool clips = false) {
  const ScheduleConfig config{
      .num_ranks = 1, .num_microbatches = microbatches, .chunks = chunks, .copies = replicas};
  return lower(make_schedule(schedule, config), units(chunks, replicas, shard), 1,
               chain_links(chunks), clips);
}

int count(const ActionList& list, ActionKind kind, int stage) {
  return static_cast<int>(std::count_if(list.begin(), list.end(), [&](const Action& action) {
    return action.kind == kind && action.stage == stage;
  }));
}

std::string findings_of(const LoweredSchedule& lowered) {
  std::string text;
  for (const Finding& finding : find_faults(lowered)) {
    text += finding.text + "\n";
  }
  return text;
}

TEST(Shard, Zero1JoinsWeightsAtTheEnd) {
  Plan plan = plan_of(2, 2);
  plan.shard = Shard::kZero1;
  const LoweredSchedule lowered =
      lower(make_schedule("gpipe", schedule_config(plan)), plan, 1, chain_links(2), true);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0F0@0 0SEND_F0>2 0RECV_B0<2 0B0@0 0REDUCE0-1 0NORM0-1 0STEP0-1@1 0GATHER0-1");
  EXPECT_EQ(lowered.shard, Shard::kZero1);
  EXPECT_EQ(findings_of(lowered), "");
}

TEST(Shard, Zero2ReducesBehindEachRunWithABackward) {
  const LoweredSchedule lowered = lowered_units("breadth-first", 2, 2, 2, Shard::kZero2);
  EXPECT_EQ(to_string(lowered.ranks[1]),
            "0F2@0 0F3@0 1F2@0 1F3@0 1B2@0 1B3@0 1REDUCE2-3 0B2@0 0B3@0 0REDUCE2-3 0STEP0-3@1 "
            "1STEP0-3@1 0GATHER0-3 1GATHER0-3");
  EXPECT_EQ(findings_of(lowered), "");
}

TEST(Shard, Zero3GathersBeforeEachRunAndFreesBehindIt) {
  const LoweredSchedule lowered = lowered_units("breadth-first", 2, 2, 2, Shard::kZero3, true);
  EXPECT_EQ(to_string(lowered.ranks[0]),
            "0GATHER0-1 0F0@0 0F1@0 0FREE0-1 1GATHER0-1 1F0@0 1F1@0 1B0@0 1B1@0 1FREE0-1 "
            "1REDUCE0-1 0GATHER0-1 0B0@0 0B1@0 0FREE0-1 0REDUCE0-1 0NORM0-3 0STEP0-3@1 1STEP0-3@1");
  EXPECT_EQ(findings_of(lowered), "");
}

// Messages do not end a run, and stand inside its GATHER and FREE.
TEST(Shard, APipelineStageIsOneRun) {
  Plan plan = plan_of(2, 2);
  plan.microbatches = 2;
  plan.shard = Shard::kZero3;
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  EXPECT_EQ(to_string(lowered.ranks[2]),
            "1GATHER0-2 1RECV_F0<0 1F0@0 1B0@0 1SEND_B0>0 1RECV_F2<0 1F2@0 1B2@0 1SEND_B2>0 "
            "1FREE0-2 1REDUCE0-2 1STEP0-3@1");
  EXPECT_EQ(findings_of(lowered), "");
}

// Bytes of a stage are N(P-1)/P times these counts.
TEST(Shard, CountsAreThoseOfTheFormulas) {
  for (const int replicas : {2, 3, 4}) {
    for (const int chunks : {1, 2, 4}) {
      for (const int microbatches : {1, 2, 4}) {
        for (const Shard shard : {Shard::kZero1, Shard::kZero2, Shard::kZero3}) {
          const LoweredSchedule lowered =
              lowered_units("breadth-first", chunks, replicas, microbatches, shard);
          ASSERT_EQ(findings_of(lowered), "");
          for (const ActionList& list : lowered.ranks) {
            for (int stage = 0; stage < chunks; ++stage) {
              const bool twice = shard == Shard::kZero3 && stage + 1 < chunks;
              EXPECT_EQ(count(list, ActionKind::kGather, stage), twice ? 2 : 1);
              EXPECT_EQ(count(list, ActionKind::kReduce, stage), 1);
            }
          }
        }
      }
    }
  }
}

// Depth-first on one rank a copy each microbatch comes back to every unit.
TEST(Shard, DepthFirstGathersForEveryMicrobatch) {
  Schedule schedule = make_schedule("breadth-first", {.num_ranks = 1, .chunks = 2});
  schedule.name = "depth-first";
  schedule.num_microbatches = 3;
  schedule.period_microbatches = 3;
  schedule.period = {parse_actions("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 0F2 1F2 1B2 0B2")};
  Plan plan = units(2, 1, Shard::kZero3);
  LoweredSchedule lowered = lower(schedule, plan, 1, chain_links(2));
  EXPECT_EQ(count(lowered.ranks[0], ActionKind::kGather, 0), 0)
      << "one replica has nothing to join";
  // The same with a replica that runs alike.
  lowered.ranks.push_back(lowered.ranks[0]);
  lowered.stage_ranks = {{0, 1}, {0, 1}};
  shard_lists(lowered, Shard::kZero3);
  // 0B0 and 0F1 are one run, so that stage 0 is gathered M + 1 times.
  EXPECT_EQ(count(lowered.ranks[1], ActionKind::kGather, 0), 4);
  EXPECT_EQ(count(lowered.ranks[1], ActionKind::kReduce, 0), 3);
  EXPECT_EQ(count(lowered.ranks[1], ActionKind::kGather, 1), 3);
  EXPECT_EQ(count(lowered.ranks[1], ActionKind::kReduce, 1), 3);
}

// plan = "data-parallel" with chunks: all units on every worker.
TEST(Shard, DataParallelChunksAreUnits) {
  ParallelConfig parallel;
  parallel.plan = "data-parallel";
  parallel.schedule = "breadth-first";
  parallel.workers = 3;
  parallel.chunks = 4;
  parallel.microbatches = 2;
  const ScheduleConfig config = schedule_config(parallel);
  EXPECT_EQ(config.num_ranks, 1);
  EXPECT_EQ(config.copies, 3);
  const Schedule schedule = make_schedule(parallel.schedule, config);
  EXPECT_EQ(schedule.num_stages, 4);
  for (const std::vector<int>& ranks : schedule.stage_ranks) {
    EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2}));
  }
}

TEST(Shard, RefusesWhatKeepsSeveralCopies) {
  Plan plan = plan_of(2, 2);
  plan.shard = Shard::kZero1;
  plan.schedule = "pipedream";
  const auto refusal = [&] {
    try {
      lower(make_schedule(plan.schedule, schedule_config(plan)), plan, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_EQ(error.key(), "parallel.shard");
      return error.message();
    }
    return std::string("lowered");
  };
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("has none"), HasSubstr("1f1b")));
  plan.schedule = "1f1b";
  plan.rule = "easgd";
  EXPECT_THAT(refusal(), HasSubstr("rule easgd"));
  plan.rule = "bsp";
  EXPECT_EQ(refusal(), "lowered");
}

// Bidirectional schedules have replicas within one copy, whose runs are not alike: zero-1 fits all.
TEST(Shard, Zero1FitsEveryScheduleWithAFlush) {
  for (const ScheduleEntry& entry : schedules()) {
    for (const ScheduleConfig& config : testing::offered(entry, {2, 4}, {2, 4})) {
      const Schedule schedule = make_schedule(entry.name, config);
      if (!schedule.flush) {
        continue;
      }
      Plan plan = plan_of_positions(schedule);
      plan.shard = Shard::kZero1;
      EXPECT_EQ(findings_of(lower(schedule, plan, 1)), "") << testing::describe(entry, config);
    }
  }
}

TEST(Shard, ValidationFindsWhatIsMissing) {
  const auto damaged = [](Shard shard, const std::string& remove, int occurrence) {
    LoweredSchedule lowered = lowered_units("breadth-first", 2, 2, 1, shard);
    for (ActionList& list : lowered.ranks) {
      int seen = 0;
      for (auto at = list.begin(); at != list.end(); ++at) {
        if (to_string(*at).starts_with(remove) && seen++ == occurrence) {
          list.erase(at);
          break;
        }
      }
    }
    return findings_of(lowered);
  };
  EXPECT_THAT(damaged(Shard::kZero3, "0GATHER", 0), HasSubstr("expected a GATHER before it"));
  EXPECT_THAT(damaged(Shard::kZero3, "0GATHER", 1), HasSubstr("expected a GATHER before it"));
  EXPECT_THAT(damaged(Shard::kZero3, "0FREE", 0), HasSubstr("are whole already"));
  EXPECT_THAT(damaged(Shard::kZero3, "1FREE", 0), HasSubstr("expected a FREE before it"));
  EXPECT_THAT(damaged(Shard::kZero3, "0REDUCE", 0), HasSubstr("expected a REDUCE after"));
  EXPECT_THAT(damaged(Shard::kZero2, "1REDUCE", 0), HasSubstr("expected a REDUCE after"));
  EXPECT_THAT(damaged(Shard::kZero1, "1GATHER", 0), HasSubstr("expected a GATHER of stage 1"));
  LoweredSchedule uneven = lowered_units("breadth-first", 2, 2, 1, Shard::kZero1);
  uneven.ranks[1].pop_back();
  EXPECT_THAT(findings_of(uneven), HasSubstr("rank 1 has no GATHER to meet it"));
  LoweredSchedule crossed = lowered_units("breadth-first", 2, 2, 1, Shard::kZero1);
  std::swap(crossed.ranks[1].back(), crossed.ranks[1][crossed.ranks[1].size() - 2]);
  EXPECT_THAT(findings_of(crossed), HasSubstr("deadlock"));
}

}  // namespace
}  // namespace millrace
