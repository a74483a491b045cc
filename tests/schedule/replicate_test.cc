// Copies of a schedule: which microbatches, positions and stages each gets, and what is refused.
#include "millrace/schedule/replicate.h"

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

TEST(Replicate, CopiesStandSideBySideEachWithItsBlockOfMicrobatches) {
  const Schedule two = replicate(testing::chunked_schedule(), 2);
  EXPECT_EQ(two.num_ranks, 4);
  EXPECT_EQ(two.num_stages, 4);
  EXPECT_EQ(two.num_microbatches, 4);
  EXPECT_EQ(two.period_microbatches, 4);
  EXPECT_EQ(two.stage_ranks, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {0, 2}, {1, 3}}));
  ASSERT_EQ(two.period.size(), 4u);
  EXPECT_EQ(to_string(two.period[0]), "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1");
  EXPECT_EQ(to_string(two.period[2]), "0F2 0F3 2F2 2F3 2B2 2B3 0B2 0B3");
  EXPECT_EQ(to_string(two.period[3]), "1F2 1F3 3F2 3B2 3F3 3B3 1B2 1B3");
  EXPECT_NO_THROW(validate(two));
  EXPECT_EQ(testing::rehearse(lower(two, 1)), "");
  EXPECT_EQ(replicate(testing::chunked_schedule(), 1), testing::chunked_schedule());
}

TEST(Replicate, StagesOnSeveralPositionsKeepThemInEveryCopy) {
  const Schedule three = replicate(testing::bidirectional_schedule(), 3);
  EXPECT_EQ(three.stage_ranks,
            (std::vector<std::vector<int>>{{0, 1, 2, 3, 4, 5}, {1, 0, 3, 2, 5, 4}}));
  EXPECT_EQ(to_string(three.period[4]), "0F4 1F5 1B5 0B4");
  const LoweredSchedule lowered = lower(three, 1);
  EXPECT_EQ(to_string(lowered.ranks[5]),
            "0F5@0 0SEND_F5>4 1RECV_F4<4 1F4@0 1B4@0 1SEND_B4>4 0RECV_B5<4 0B5@0 0REDUCE0-5 "
            "1REDUCE0-5 0STEP0-5@1 1STEP0-5@1");
  EXPECT_EQ(testing::rehearse(lowered), "");
  EXPECT_TRUE(find_faults(lowered).empty());
}

TEST(Replicate, RangesMoveAsAWhole) {
  const Schedule schedule = testing::flush_schedule({"0F0-1 0B0 0B1"}, {{0}}, 2);
  EXPECT_EQ(to_string(replicate(schedule, 3).period[2]), "0F4-5 0B4 0B5");
}

// Step s of copy k of K holds microbatches (s K + k) N up to, without, (s K + k + 1) N.
TEST(Replicate, WithoutAFlushEveryStepHoldsTheBlocksOfAllCopies) {
  const Schedule three = replicate(testing::two_stage_schedule("stash"), 3);
  EXPECT_EQ(three.num_microbatches, 6);
  EXPECT_EQ(three.period_microbatches, 6);
  EXPECT_EQ(to_string(three.prologue[0]), "0F0");
  EXPECT_EQ(to_string(three.prologue[2]), "0F2");
  EXPECT_EQ(to_string(three.period[0]), "0F1 0B0 0F6 0B1");
  EXPECT_EQ(to_string(three.period[2]), "0F3 0B2 0F8 0B3");
  EXPECT_EQ(to_string(three.period[5]), "1F4 1B4 1F5 1B5");
  EXPECT_EQ(to_string(unroll(three, 3)[2]), "0F2 0F3 0B2 0F8 0B3 0F9 0B8 0F14 0B9 0F15 0B14 0B15");
  for (const char* policy : {"stash", "latest", "double_buffer", "vertical_newest"}) {
    Schedule other = three;
    other.policy = policy;
    EXPECT_NO_THROW(validate(other)) << policy;
    for (const int64_t steps : {1, 2, 5, 11}) {
      const LoweredSchedule lowered = lower(other, steps);
      EXPECT_EQ(testing::rehearse(lowered), "") << policy << " " << steps;
      EXPECT_EQ(lowered.round_steps, 1);
    }
  }
}

TEST(Replicate, RefusesNoCopyAndActionsOverSeveralSteps) {
  const auto refusal = [](const Schedule& schedule, int copies) {
    try {
      replicate(schedule, copies);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
    ADD_FAILURE() << "expected an Error";
    return std::string();
  };
  EXPECT_THAT(refusal(testing::chunked_schedule(), 0), HasSubstr("at least one copy, found 0"));
  EXPECT_THAT(refusal(testing::chunked_schedule(), -2), HasSubstr("found -2"));
  const Schedule wide = testing::endless_schedule({"0F0 0F1-2 0B0 0B1-2"}, {{0}}, 2, "stash");
  EXPECT_THAT(refusal(wide, 2), AllOf(HasSubstr("0F1-2"), HasSubstr("several steps of 2")));
  Schedule unnumbered = testing::chunked_schedule();
  unnumbered.period[0].push_back(parse_action("0STEP"));
  EXPECT_THAT(refusal(unnumbered, 2), HasSubstr("0STEP cannot be copied"));
}

TEST(Replicate, MakeScheduleCopiesABuiltin) {
  for (const ScheduleEntry& entry : schedules()) {
    for (const int microbatches : {1, 4}) {
      ScheduleConfig config{.num_ranks = 2, .num_microbatches = microbatches};
      if (entry.builtin->offers(config)) {
        continue;
      }
      const Schedule one = make_schedule(entry.name, config);
      for (const int copies : {2, 3}) {
        config.copies = copies;
        const Schedule schedule = make_schedule(entry.name, config);
        EXPECT_EQ(schedule, replicate(one, copies)) << entry.name;
        EXPECT_EQ(config.num_parts(), copies * microbatches);
        EXPECT_NO_THROW(validate(schedule)) << entry.name;
        EXPECT_EQ(testing::rehearse(lower(schedule, 7)), "") << entry.name;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
