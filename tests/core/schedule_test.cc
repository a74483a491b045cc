#include "millrace/core/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

Action forward(int stage, int64_t m) { return Action::of(ActionKind::kForward, stage, m); }
Action backward(int stage, int64_t m) { return Action::of(ActionKind::kBackward, stage, m); }

// What one stage of 1F1B without a flush runs for `count` microbatches, written as a loop.
ActionList one_f_one_b(int stages, int stage, int64_t count) {
  ActionList list;
  const int64_t warm_up = std::min<int64_t>(stages - 1 - stage, count);
  for (int64_t m = 0; m < warm_up; ++m) {
    list.push_back(forward(stage, m));
  }
  for (int64_t m = 0; m < count; ++m) {
    if (m + warm_up < count) {
      list.push_back(forward(stage, m + warm_up));
    }
    list.push_back(backward(stage, m));
  }
  return list;
}

// The same as prologue, one period and an epilogue that is written after `repeats` of it.
Schedule no_flush(int stages, int64_t repeats) {
  Schedule schedule;
  schedule.name = "by-hand";
  schedule.policy = "stash";
  schedule.flush = false;
  schedule.num_ranks = stages;
  schedule.num_stages = stages;
  schedule.prologue.resize(static_cast<std::size_t>(stages));
  schedule.period = schedule.epilogue = schedule.prologue;
  for (int s = 0; s < stages; ++s) {
    const auto rank = static_cast<std::size_t>(s);
    const int64_t warm_up = stages - 1 - s;
    schedule.stage_ranks.push_back({s});
    for (int64_t m = 0; m < warm_up; ++m) {
      schedule.prologue[rank].push_back(forward(s, m));
      schedule.epilogue[rank].push_back(backward(s, m + repeats));
    }
    schedule.period[rank] = {forward(s, warm_up), backward(s, 0)};
  }
  return schedule;
}

TEST(ScheduleTest, UnrollWithoutAFlushIsTheLoop) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (const int64_t repeats : {0, 1, 3}) {
      const Schedule schedule = no_flush(stages, repeats);
      for (int64_t steps = 1; steps <= 15; ++steps) {
        const ActionLists lists = unroll(schedule, steps);
        ASSERT_EQ(lists.size(), static_cast<std::size_t>(stages));
        for (int s = 0; s < stages; ++s) {
          ASSERT_EQ(to_string(lists[static_cast<std::size_t>(s)]),
                    to_string(one_f_one_b(stages, s, steps)))
              << stages << " stages, " << steps << " steps, stage " << s
              << ", epilogue written after " << repeats;
        }
      }
    }
  }
}

// The other way to cut an order: every stage fills up to the same microbatch, so that the epilogue
// holds forwards too.
TEST(ScheduleTest, UnrollTakesAnEpilogueWithForwards) {
  Schedule schedule = no_flush(3, 0);
  schedule.prologue = {parse_actions("0F0 0F1"), parse_actions("1F0"), {}};
  schedule.epilogue = {parse_actions("0B0 0B1"), parse_actions("1F1 1B0 1B1"),
                       parse_actions("2F0 2B0 2F1 2B1")};
  for (int64_t steps = 1; steps <= 9; ++steps) {
    for (int s = 0; s < 3; ++s) {
      EXPECT_EQ(to_string(unroll(schedule, steps)[static_cast<std::size_t>(s)]),
                to_string(one_f_one_b(3, s, steps)));
    }
  }
}

// Every kind, stage and microbatch exactly once, however steps, period and prologue fit together.
TEST(ScheduleTest, UnrollCoversEachMicrobatchOnce) {
  Schedule schedule;
  schedule.name = "replicated";
  schedule.flush = false;
  schedule.num_ranks = 3;
  schedule.num_stages = 2;
  schedule.period_microbatches = 2;  // ranks 0 and 1 share stage 0
  schedule.stage_ranks = {{0, 1}, {2}};
  schedule.prologue = {parse_actions("0F0"), parse_actions("0F1"), {}};
  schedule.period = {parse_actions("0F2 0B0"), parse_actions("0F3 0B1"),
                     parse_actions("1F0 1B0 1F1 1B1")};
  schedule.epilogue = {parse_actions("0B2"), parse_actions("0B3"),
                       parse_actions("1F2 1B2 1F3 1B3")};
  for (int64_t steps = 1; steps <= 11; ++steps) {
    std::map<std::string, int> counts;
    const ActionLists lists = unroll(schedule, steps);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (const Action& action : lists[rank]) {
        ++counts[to_string(action)];
        if (action.stage == 0) {
          EXPECT_EQ(action.first % 2, static_cast<int64_t>(rank));
        }
      }
    }
    EXPECT_EQ(counts.size(), static_cast<std::size_t>(4 * steps)) << steps << " steps";
    for (const auto& [text, count] : counts) {
      EXPECT_EQ(count, 1) << text << " of " << steps << " steps";
    }
  }
}

TEST(ScheduleTest, UnrollWithAFlushRepeatsTheStep) {
  Schedule schedule;
  schedule.name = "gpipe";
  schedule.num_microbatches = 3;
  schedule.period_microbatches = 3;
  schedule.stage_ranks = {{0}};
  schedule.period = {parse_actions("0F0 0F1 0F2 0B0-2")};
  EXPECT_EQ(to_string(unroll(schedule, 1)[0]), "0F0 0F1 0F2 0B0-2");
  EXPECT_EQ(to_string(unroll(schedule, 2)[0]), "0F0 0F1 0F2 0B0-2 0F3 0F4 0F5 0B3-5");
  EXPECT_EQ(caught([&] { unroll(schedule, 0); }).code(), ErrorCode::kInternal);
}

TEST(ScheduleTest, UnrollClipsRangesAtTheEnd) {
  Schedule schedule = no_flush(1, 0);
  schedule.period_microbatches = 2;
  schedule.period = {parse_actions("0F0 0F1 0B0-1")};
  EXPECT_EQ(to_string(unroll(schedule, 3)[0]), "0F0 0F1 0B0-1 0F2 0B2");
}

TEST(ScheduleTest, UnrollRefusesWhatCannotCover) {
  Schedule schedule = no_flush(2, 0);
  schedule.period = {parse_actions("0B0"), parse_actions("1F0 1B0")};
  EXPECT_THAT(caught([&] { unroll(schedule, 5); }).message(), HasSubstr("0F of microbatch 4"));
  EXPECT_NO_THROW(unroll(schedule, 1));
  schedule = no_flush(3, 0);
  schedule.epilogue[1] = parse_actions("1B4");
  EXPECT_THAT(caught([&] { unroll(schedule, 5); }).message(), HasSubstr("does not go on"));
  schedule = no_flush(2, 0);
  schedule.period_microbatches = 0;
  EXPECT_EQ(caught([&] { unroll(schedule, 5); }).code(), ErrorCode::kInvalidArgument);
  schedule.num_ranks = 1;
  EXPECT_EQ(caught([&] { unroll(schedule, 5); }).code(), ErrorCode::kInvalidArgument);
}

TEST(ScheduleTest, RandomSchedulesRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    Schedule schedule;
    schedule.name = draws.name();
    schedule.policy = draws.name();
    schedule.flush = draws.coin();
    schedule.num_ranks = static_cast<int>(draws.between(1, 5));
    schedule.num_stages = static_cast<int>(draws.between(1, 5));
    schedule.num_microbatches = static_cast<int>(draws.between(1, 9));
    schedule.period_microbatches =
        schedule.num_microbatches * (schedule.flush ? 1 : draws.between(1, 6));
    for (int s = 0; s < schedule.num_stages; ++s) {
      schedule.stage_ranks.push_back({static_cast<int>(draws.between(0, schedule.num_ranks - 1))});
    }
    const auto lists = [&](bool filled) {
      ActionLists result(static_cast<std::size_t>(schedule.num_ranks));
      for (ActionList& list : result) {
        for (int64_t i = filled ? draws.between(0, 6) : 0; i > 0; --i) {
          list.push_back(Action::of(static_cast<ActionKind>(draws.between(0, 3)),
                                    static_cast<int>(draws.between(0, schedule.num_stages - 1)),
                                    draws.between(0, 8)));
        }
      }
      return result;
    };
    schedule.period = lists(true);
    if (draws.coin()) {
      schedule.prologue = lists(!schedule.flush);
      schedule.epilogue = lists(!schedule.flush);
    }
    expect_round_trip(schedule, schedule_from);
  }
}

TEST(ScheduleTest, RefusesBadSchedules) {
  const Value good = to_value(no_flush(2, 1));
  EXPECT_NO_THROW(schedule_from(as_document(good)));
  const auto refuse = [&](const std::string& path, const Value& item, const std::string& key,
                          const std::string& part) {
    const Error error = caught([&] { schedule_from(as_document(with(good, path, item))); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << path;
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  };
  refuse("num_ranks", Value::of(0), "num_ranks", "1 or more");
  refuse("num_stages", Value::of(int64_t{1} << 40), "num_stages", "at most");
  refuse("period.1", Value::of("1F0 1Q0"), "period[1]", "not an action");
  refuse("period.1", Value::of("2F0"), "period[1]", "of stage 2, but there are 2 stages");
  refuse("period", Value::list(), "period", "each of the 2 ranks, found 0");
  refuse("prologue", Value::list({Value::of("0F0")}), "prologue", "each of the 2 ranks, found 1");
  refuse("stage_ranks.1", Value::list({Value::of(2)}), "stage_ranks[1]", "ranks below 2");
  refuse("stage_ranks.1", Value::list({Value::of(1), Value::of(1)}), "stage_ranks[1]", "1 twice");
  refuse("stage_ranks.1", Value::list(), "stage_ranks[1]", "found none");
  refuse("stage_ranks", Value::list({Value::list({Value::of(0)})}), "stage_ranks", "each of the 2");
  refuse("period_microbatches", Value::of(0), "period_microbatches", "1 or more");
  refuse("flush", Value::of(true), "prologue", "with a flush there is only the period");
  refuse("flush", Value::of("yes"), "flush", "true or false");
  const Value flushed =
      with(with(good, "flush", Value::of(true)), "num_microbatches", Value::of(4));
  EXPECT_EQ(caught([&] { schedule_from(as_document(flushed)); }).key(), "period_microbatches");
  const Value broken =
      with(with(good, "num_microbatches", Value::of(2)), "period_microbatches", Value::of(3));
  const Error error = caught([&] { schedule_from(as_document(broken)); });
  EXPECT_EQ(error.key(), "period_microbatches");
  EXPECT_THAT(error.message(), HasSubstr("whole steps of 2 microbatches, found 3"));
  for (const char* key : {"name", "num_ranks", "num_stages", "num_microbatches", "period"}) {
    EXPECT_EQ(caught([&] { schedule_from(as_document(without(good, key))); }).key(), key);
  }
}

}  // namespace
}  // namespace millrace
