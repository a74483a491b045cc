// Split layers as a pass over lowered schedules.
#include "millrace/schedule/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/schedule_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Plan plan_of(int stages, int replicas, const std::string& schedule, int microbatches) {
  Plan plan = testing::plan_of(stages, replicas);
  plan.schedule = schedule;
  plan.microbatches = microbatches;
  plan.workers = stages * replicas;
  return plan;
}

Schedule made(const Plan& plan) { return make_schedule(plan.schedule, schedule_config(plan), ""); }

TEST(SplitPlan, PutsThePartsOfARankBesideOneAnother) {
  const Plan whole = plan_of(2, 2, "1f1b", 2);
  const Plan split = split_plan(whole, 3);
  EXPECT_EQ(split.workers, 12);
  EXPECT_EQ(split.stages[0].ranks, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(split.stages[1].ranks, (std::vector<int>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(split.max_replicas(), 2);
  EXPECT_EQ(plan_of_part(split, 1).stages[1].ranks, (std::vector<int>{7, 10}));
  EXPECT_EQ(plan_of_part(whole, 0), whole);
  EXPECT_EQ(schedule_config(split).replicas, schedule_config(whole).replicas);
}

TEST(SplitPlan, EveryPartRunsTheListOfTheWhole) {
  for (const std::string schedule : {"1f1b", "gpipe", "pipedream", "zb-h1"}) {
    for (const int parts : {2, 3}) {
      const int replicas = schedule == "zb-h1" ? 1 : 2;
      const Plan whole = plan_of(2, replicas, schedule, schedule == "pipedream" ? 1 : 2);
      const Plan split = split_plan(whole, parts);
      const LoweredSchedule expected = lower(made(whole), whole, 4);
      const LoweredSchedule lowered = lower(made(split), split, 4);
      EXPECT_EQ(lowered.split_parts, parts);
      EXPECT_EQ(lowered.round_steps, expected.round_steps);
      for (int rank = 0; rank < split.workers; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        const auto whole_rank = static_cast<std::size_t>(rank / parts);
        ActionList list = lowered.ranks[at];
        for (Action& action : list) {
          if (action.peer != kNone) {
            EXPECT_EQ(action.peer % parts, rank % parts) << to_string(action);
            action.peer /= parts;
          }
        }
        EXPECT_EQ(list, expected.ranks[whole_rank]) << schedule << " rank " << rank;
        EXPECT_EQ(lowered.rank_stages[at], expected.rank_stages[whole_rank]);
        for (const int stage : lowered.rank_stages[at]) {
          EXPECT_EQ(lowered.replica_of(rank, stage),
                    expected.replica_of(static_cast<int>(whole_rank), stage));
        }
      }
      // Each part by itself is a schedule that can run.
      const Plan part = plan_of_part(split, parts - 1);
      EXPECT_NO_THROW(validate(made(split), part, chain_links(2)));
    }
  }
}

TEST(SplitPlan, EvaluationRunsOnAllParts) {
  const Plan split = split_plan(plan_of(2, 2, "1f1b", 1), 2);
  const LoweredSchedule lowered = lower_evaluation(split, 4);
  EXPECT_EQ(to_string(lowered.ranks[0]), "0F0 0SEND_F0>4 0F2 0SEND_F2>4");
  EXPECT_EQ(to_string(lowered.ranks[1]), "0F0 0SEND_F0>5 0F2 0SEND_F2>5");
  EXPECT_EQ(to_string(lowered.ranks[7]), "1RECV_F1<3 1F1 1RECV_F3<3 1F3");
}

std::string message_of(const Plan& plan) {
  try {
    ranks_of_parts(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(SplitPlan, RanksThatAreNoPartsAreRefused) {
  Plan plan = plan_of(1, 3, "1f1b", 1);
  plan.split_parts = 2;
  EXPECT_THAT(message_of(plan), HasSubstr("3 ranks, which are not replicas of 2 parts"));
  Plan crossed;
  crossed.workers = 4;
  crossed.split_parts = 2;
  crossed.stages = {{{"a"}, {0, 1}}, {{"b"}, {0, 2}}};
  EXPECT_THAT(message_of(crossed), HasSubstr("part 1 of what rank 0 holds"));
}

}  // namespace
}  // namespace millrace
