#include "millrace/core/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

Trace random_trace(uint64_t seed) {
  Draws draws(seed);
  Trace trace;
  trace.source = draws.coin() ? "measured" : "simulated";
  trace.num_steps = draws.between(0, 100);
  trace.step_s = draws.zero_or_more();
  trace.window_s = draws.zero_or_more();
  trace.complete = draws.coin();
  const int count = static_cast<int>(draws.between(1, 4));
  for (int r = 0; r < count; ++r) {
    RankTrace rank;
    rank.rank = r;
    for (int stage = 0; stage < 4; ++stage) {
      if (draws.coin()) {
        rank.stages.push_back(stage);
      }
    }
    rank.compute_s = draws.zero_or_more();
    rank.communicate_s = draws.zero_or_more();
    rank.wait_s = draws.zero_or_more();
    rank.update_s = draws.zero_or_more();
    double at = 0;
    for (int64_t i = draws.between(0, 8); i > 0; --i) {
      TraceEvent event;
      event.action = parse_action(draws.coin() ? "1F3@2" : "0SEND_B4>1");
      event.start_s = at;
      at += draws.positive();
      event.end_s = at;
      event.wait_s = draws.coin() ? 0 : (event.end_s - event.start_s) / 3;
      event.bytes = draws.bytes();
      rank.events.push_back(event);
      if (draws.coin()) {
        rank.beside.push_back(event);
      }
    }
    if (draws.coin()) {
      rank.process = static_cast<int>(draws.between(0, 3));
      rank.host = "node";
      rank.origin_s = draws.positive();
    }
    trace.ranks.push_back(rank);
  }
  return trace;
}

TEST(TraceTest, RandomTracesRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    expect_round_trip(random_trace(seed), trace_from);
  }
}

TEST(TraceTest, RefusesBadTraces) {
  Trace trace;
  RankTrace rank;
  rank.events = {{parse_action("0F0"), 0, 1, 0, 0}, {parse_action("0B0"), 1, 2, 0, 0}};
  trace.ranks = {rank, rank};
  trace.ranks[1].rank = 1;
  const Value good = to_value(trace);
  EXPECT_EQ(trace_from(as_document(good)), trace);
  const auto refuse = [&](const std::string& path, const Value& item, const std::string& key,
                          const std::string& part) {
    const Error error = caught([&] { trace_from(as_document(with(good, path, item))); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << path;
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  };
  refuse("source", Value::of("guessed"), "source", "`measured` or `simulated`");
  refuse("step_s", Value::of(-1), "step_s", "0 or more");
  refuse("ranks.0.rank", Value::of(-1), "ranks[0].rank", "0 or more");
  refuse("ranks.0.rank", Value::of(int64_t{1} << 40), "ranks[0].rank", "at most");
  refuse("ranks.0.stages", Value::list({Value::of(-2)}), "ranks[0].stages", "from 0 up, found -2");
  refuse("ranks.0.stages", Value::of(0), "ranks[0].stages", "list");
  refuse("ranks.1.rank", Value::of(0), "ranks[1].rank", "rank 0 stands there twice");
  refuse("ranks.0.events.0.action", Value::of("0Q0"), "ranks[0].events[0].action", "not an action");
  refuse("ranks.0.events.0.end_s", Value::of(-0.5), "ranks[0].events[0].end_s", "0 or more");
  refuse("ranks.0.events.1.end_s", Value::of(0.5), "ranks[0].events[1].end_s", "before its start");
}

TEST(TraceTest, EventsStandInOrderOfStart) {
  Trace trace;
  RankTrace rank;
  rank.events = {{parse_action("0F0"), 3, 4, 0, 0}, {parse_action("0B0"), 1, 2, 0, 0}};
  trace.ranks = {rank};
  const Error error = caught([&] { trace_from(as_document(to_value(trace))); });
  EXPECT_EQ(error.key(), "ranks[0].events[1].start_s");
}

TEST(TraceTest, StageTimesAreMeansOverReplicasPerStep) {
  Trace trace;
  trace.num_steps = 4;
  const auto add = [&](int rank, const std::vector<int>& stages, double compute, double communicate,
                       double wait, double update) {
    RankTrace one;
    one.rank = rank;
    one.stages = stages;
    one.compute_s = compute;
    one.communicate_s = communicate;
    one.wait_s = wait;
    one.update_s = update;
    trace.ranks.push_back(one);
  };
  add(0, {1}, 8, 4, 12, 16);
  add(1, {0}, 10, 1, 2, 3);
  add(2, {0}, 30, 3, 6, 5);
  add(3, {}, 99, 99, 99, 99);
  const std::vector<StageTimes> times = stage_times(trace);
  ASSERT_EQ(times.size(), 2u) << "an idle rank has no stage";
  EXPECT_EQ(times[0].stages, std::vector<int>{0});
  EXPECT_DOUBLE_EQ(times[0].compute_s, 40.0 / 2 / 4);
  EXPECT_DOUBLE_EQ(times[0].communicate_s, 4.0 / 2 / 4);
  EXPECT_DOUBLE_EQ(times[0].wait_s, 8.0 / 2 / 4);
  EXPECT_DOUBLE_EQ(times[0].update_s, 8.0 / 2 / 4);
  EXPECT_EQ(times[1].stages, std::vector<int>{1});
  EXPECT_DOUBLE_EQ(times[1].compute_s, 2.0);
  EXPECT_DOUBLE_EQ(times[1].update_s, 4.0);
  trace.num_steps = 0;
  EXPECT_DOUBLE_EQ(stage_times(trace)[1].compute_s, 8.0);
}

TEST(TraceTest, StageTimesAreOfRanksThatHoldTheSameStages) {
  Trace trace;
  trace.num_steps = 2;
  const auto add = [&](int rank, const std::vector<int>& stages, double compute) {
    RankTrace one;
    one.rank = rank;
    one.stages = stages;
    one.compute_s = compute;
    trace.ranks.push_back(one);
  };
  add(0, {1, 3}, 8);
  add(1, {0, 2}, 10);
  add(2, {1, 3}, 4);
  add(3, {1}, 6);
  const std::vector<StageTimes> times = stage_times(trace);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[0].stages, (std::vector<int>{0, 2}));
  EXPECT_DOUBLE_EQ(times[0].compute_s, 5);
  EXPECT_EQ(times[1].stages, std::vector<int>{1});
  EXPECT_DOUBLE_EQ(times[1].compute_s, 3);
  EXPECT_EQ(times[2].stages, (std::vector<int>{1, 3}));
  EXPECT_DOUBLE_EQ(times[2].compute_s, 12.0 / 2 / 2);
}

TEST(TraceTest, StagesInWords) {
  EXPECT_EQ(describe_stages({}), "idle");
  EXPECT_EQ(describe_stages({3}), "stage 3");
  EXPECT_EQ(describe_stages({0, 2}), "stages 0, 2");
}

}  // namespace
}  // namespace millrace
