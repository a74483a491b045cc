#include "millrace/replay/align.h"

#include <gtest/gtest.h>

#include <cmath>

#include "millrace/base/random.h"
#include "tests/replay/replay_testing.h"

namespace millrace {
namespace {

using testing::ping_pong;
using testing::PingPong;

Alignment align(const Trace& trace) { return align_clocks(trace, match_events(trace, true)); }

// What planner-checks of the literature ask: skews of 50 ms, delays and jitter as named.
TEST(AlignTest, RecoversASkewOfFiftyMilliseconds) {
  struct Case {
    PingPong config;
    double within_s;
  };
  const Case cases[] = {
      {{.skew_s = 0.05, .there_s = 50e-6, .back_s = 50e-6, .jitter_s = 200e-6}, 0.02e-3},
      {{.skew_s = -0.05, .there_s = 50e-6, .back_s = 50e-6, .jitter_s = 200e-6}, 0.02e-3},
      {{.skew_s = 0.05, .there_s = 20e-3, .back_s = 20e-3, .jitter_s = 2e-3}, 0.2e-3},
      {{.skew_s = 0.05, .there_s = 2e-3, .back_s = 0.1e-3, .jitter_s = 100e-6}, 1e-3},
  };
  for (const Case& each : cases) {
    const Alignment alignment = align(ping_pong(each.config));
    ASSERT_EQ(alignment.clocks.size(), 2U);
    const ProcessClock& clock = alignment.clocks[1];
    EXPECT_NEAR(clock.offset_s, each.config.skew_s, each.within_s);
    EXPECT_LE(std::abs(clock.offset_s - each.config.skew_s), clock.half_width_s);
    EXPECT_LT(clock.half_width_s, each.config.there_s + each.config.back_s + 1e-3);
    EXPECT_TRUE(clock.note.empty());
    EXPECT_TRUE(alignment.consistent);
  }
}

// Half the difference of the least delays, whatever is done: the width says so.
TEST(AlignTest, UnequalDelaysAreNotASkewThatCanBeKnown) {
  const PingPong config{.skew_s = 0.05, .there_s = 20e-3, .back_s = 0.1e-3, .jitter_s = 50e-6};
  const ProcessClock clock = align(ping_pong(config)).clocks.at(1);
  EXPECT_NEAR(clock.offset_s - config.skew_s, 10e-3, 0.2e-3);
  EXPECT_NEAR(clock.half_width_s, 10e-3, 0.2e-3);
}

TEST(AlignTest, OneDirectionIsOneBound) {
  Trace trace = ping_pong({.skew_s = 0.05, .there_s = 1e-3, .back_s = 1e-3, .jitter_s = 0});
  // Only what rank 0 sends.
  for (RankTrace& rank : trace.ranks) {
    std::erase_if(rank.events, [](const TraceEvent& event) {
      return event.action.kind == ActionKind::kSendBackward ||
             event.action.kind == ActionKind::kReceiveBackward;
    });
  }
  const ProcessClock clock = align(trace).clocks.at(1);
  EXPECT_NEAR(clock.offset_s, 0.051, 1e-6);  // the bound itself
  EXPECT_TRUE(std::isinf(clock.half_width_s));
  EXPECT_EQ(clock.note, "messages one way only: the offset is at most this");
}

TEST(AlignTest, NobodyLeavesAReductionBeforeTheLastCame) {
  // By true time: rank 0 asks at 1.0, rank 1 at 1.2; both are through at 1.3.
  Trace trace = testing::two_processes();
  const double skew_s = 0.05;
  const Action reduce = parse_action("0REDUCE0@1");
  for (int step = 0; step < 3; ++step) {
    trace.ranks[0].events.push_back({reduce, step + 1.0, step + 1.3, 0.2, 100});
    trace.ranks[1].events.push_back({reduce, step + 1.2 + skew_s, step + 1.3 + skew_s, 0, 100});
  }
  const ProcessClock clock = align(trace).clocks.at(1);
  // hi: 1.35 - 1.0; lo: 1.25 - 1.3.
  EXPECT_NEAR(clock.offset_s, 0.15, 1e-9);
  EXPECT_NEAR(clock.half_width_s, 0.2, 1e-9);
  EXPECT_EQ(align_clocks(trace, match_events(trace, false)).clocks.at(1).note,
            "nothing passed between it and the first: its clock is taken as it is");
}

TEST(AlignTest, EqualSizesDecideWhereThereAreSome) {
  // Large messages there take 10 ms, small ones 1 ms both ways.
  ClockPair pair{.low_s = -1e-3, .high_s = 1e-3, .equal_low_s = -1e-3, .equal_high_s = 1e-3};
  EXPECT_DOUBLE_EQ(pair.middle_s(), 0);
  // All messages' bounds would say 2 ms; those of equal size 0.5 ms, which lies inside.
  pair = {.low_s = -1e-3, .high_s = 5e-3, .equal_low_s = -4e-3, .equal_high_s = 5e-3};
  EXPECT_DOUBLE_EQ(pair.middle_s(), 0.5e-3);
  // Outside of the bounds is nowhere.
  pair = {.low_s = 1e-3, .high_s = 5e-3, .equal_low_s = -8e-3, .equal_high_s = 5e-3};
  EXPECT_DOUBLE_EQ(pair.middle_s(), 1e-3);
}

TEST(AlignTest, OffsetsOfSeveralClocksAreTheLeastSquaresInsideTheBounds) {
  // 0-1 says 1.0, 1-2 says 1.0, 0-2 says 2.3; equal widths: each gives a third of 0.3.
  std::vector<ClockPair> pairs = {{.from = 0, .to = 1, .low_s = 0.5, .high_s = 1.5},
                                  {.from = 1, .to = 2, .low_s = 0.5, .high_s = 1.5},
                                  {.from = 0, .to = 2, .low_s = 1.8, .high_s = 2.8}};
  std::vector<double> offsets = solve_offsets(3, pairs);
  EXPECT_EQ(offsets[0], 0);
  EXPECT_NEAR(offsets[1], 1.1, 1e-6);
  EXPECT_NEAR(offsets[2], 2.2, 1e-6);
  // A wide pair gives way: weights 1, 1, 1/100.
  pairs[2].low_s = -2.7;
  pairs[2].high_s = 7.3;
  offsets = solve_offsets(3, pairs);
  // Minimise (a-1)^2 + (b-a-1)^2 + (b-2.3)^2/100: a = 1 + d, b = 2 + 2d, d = 0.3/(100 + 2).
  EXPECT_NEAR(offsets[1], 1 + 0.3 / 102, 1e-6);
  EXPECT_NEAR(offsets[2], 2 + 0.6 / 102, 1e-6);
  // A bound that the squares would cross: 1-2 at most 0.9, though its own middle is far below.
  pairs = {{.from = 0, .to = 1, .low_s = 0.9, .high_s = 1.1},
           {.from = 1, .to = 2, .low_s = -10, .high_s = 0.9},
           {.from = 0, .to = 2, .low_s = 1.95, .high_s = 3}};
  offsets = solve_offsets(3, pairs);
  EXPECT_LE(offsets[2] - offsets[1], 0.9 + 1e-9);
  EXPECT_LE(offsets[1], 1.1 + 1e-9);
  EXPECT_GE(offsets[2], 1.95 - 1e-9);
  EXPECT_NEAR(offsets[2] - offsets[1], 0.9, 1e-6);
}

TEST(AlignTest, AlignedTracesHaveOneClock) {
  const Trace trace = ping_pong({.skew_s = 0.05, .there_s = 1e-3, .back_s = 1e-3, .jitter_s = 0});
  const Matches matches = match_events(trace, true);
  const Trace shifted = aligned(trace, align_clocks(trace, matches));
  EXPECT_EQ(match_events(shifted, true).num_alone, 0);
  for (const MatchedMessage& message : matches.messages) {
    const auto at = [&](const EventPlace& place) {
      return shifted.ranks[static_cast<std::size_t>(place.rank)]
          .events[static_cast<std::size_t>(place.event)];
    };
    EXPECT_NEAR(at(message.receive).end_s - at(message.send).start_s, 1e-3, 1e-6);
  }
}

TEST(AlignTest, BoundsThatContradictAreSaid) {
  // A clock that drifts by 1% over the trace.
  Trace trace = ping_pong({.skew_s = 0.05, .there_s = 50e-6, .back_s = 50e-6, .jitter_s = 0});
  for (TraceEvent& event : trace.ranks[1].events) {
    event.start_s *= 1.01;
    event.end_s *= 1.01;
  }
  EXPECT_FALSE(align(trace).consistent);
}

}  // namespace
}  // namespace millrace
