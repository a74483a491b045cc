#include "millrace/report/internal/steady.h"

#include <gtest/gtest.h>

#include "tests/report/traces.h"

namespace millrace {
namespace {

using internal::steady_window;
using internal::TimeWindow;

TEST(SteadyWindow, TakesStepsOfTheMiddle) {
  const TimeWindow window = steady_window(test::two_ranks("measured", 20), 6);
  EXPECT_EQ(window.first_step, 7);
  EXPECT_EQ(window.num_steps, 6);
  EXPECT_NEAR(window.start_s, 0.070, 1e-12);
  EXPECT_NEAR(window.end_s, 0.130, 1e-12);
}

TEST(SteadyWindow, LeavesOutTheFirstStepWhenItCan) {
  EXPECT_EQ(steady_window(test::two_ranks("measured", 7), 6).first_step, 1);
  EXPECT_EQ(steady_window(test::two_ranks("measured", 6), 6).first_step, 0);
}

TEST(SteadyWindow, TakesAllOfAShortTraceWithItsDrain) {
  Trace trace = test::two_ranks("measured", 2);
  trace.ranks[1].events.push_back(test::event("1STEP", 0.020, 0.025));
  const TimeWindow window = steady_window(trace, 6);
  EXPECT_EQ(window.num_steps, 2);
  EXPECT_DOUBLE_EQ(window.end_s, 0.025);
}

// Without a flush the next forward precedes the update of the last minibatch: a step still begins
// with the first computation after an update.
TEST(SteadyWindow, CountsUpdatesWithoutAFlush) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  double t = 0;
  const auto add = [&](const std::string& action) {
    rank.events.push_back(test::event(action, t, t + 1));
    t += 1;
  };
  add("0F0");
  for (int b = 0; b < 9; ++b) {
    add("0F" + std::to_string(b + 1));
    add("0B" + std::to_string(b));
    add("0STEP" + std::to_string(b));
  }
  trace.ranks = {rank};
  const TimeWindow window = steady_window(trace, 3);
  EXPECT_EQ(window.first_step, 3);
  EXPECT_DOUBLE_EQ(window.start_s, 10);
  EXPECT_DOUBLE_EQ(window.end_s, 19);
}

TEST(SteadyWindow, IsTheWholeTraceWithoutUpdates) {
  Trace trace;
  EXPECT_EQ(steady_window(trace, 6).length_s(), 0);
  trace.ranks.resize(3);
  EXPECT_EQ(steady_window(trace, 6).length_s(), 0);
  trace.ranks[2].events = {test::event("0F0", 3, 4), test::event("0F1", 4, 9)};
  const TimeWindow window = steady_window(trace, 6);
  EXPECT_EQ(window.num_steps, 0);
  EXPECT_EQ(window.start_s, 3);
  EXPECT_EQ(window.end_s, 9);
}

}  // namespace
}  // namespace millrace
