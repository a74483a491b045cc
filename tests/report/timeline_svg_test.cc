#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/report/report.h"
#include "tests/report/markup.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TimelineSvg, DrawsATinyTrace) {
  const std::string svg = timeline_svg(test::two_ranks("simulated", 1), "1f1b, 2 ranks");
  EXPECT_EQ(svg, read_file("tests/report/golden/timeline.svg"))
      << "if the new picture is right, keep it:\n"
      << svg;
  EXPECT_TRUE(test::is_nested(svg));
}

TEST(TimelineSvg, EscapesItsTitle) {
  const std::string svg = timeline_svg(Trace(), "a<b>&\"c\x01");
  EXPECT_THAT(svg, HasSubstr("<title>a&lt;b&gt;&amp;&quot;c?</title>"));
  EXPECT_TRUE(test::is_nested(svg));
}

TEST(TimelineSvg, LeavesOutNumbersThatDoNotFit) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  rank.events = {test::event("0F0", 0, 0.001), test::event("0F1", 0.001, 1)};
  trace.ranks = {rank};
  const std::string svg = timeline_svg(trace, "");
  EXPECT_THAT(svg, HasSubstr(">1</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("class=\"F0\" x=\"0.24\">0</text>")));
  EXPECT_THAT(svg, HasSubstr("<title>0F0, 1.000 ms from 0 s</title>"));
}

TEST(TimelineSvg, CutsALongTraceToItsSteadyPart) {
  const std::string svg = timeline_svg(test::two_ranks("measured", 4000), "long");
  EXPECT_THAT(svg, HasSubstr("long (steps 1993 to 2008)"));
  EXPECT_LT(svg.size(), 40000U);
  EXPECT_TRUE(test::is_nested(svg));
}

// Both of the bubble's and the stash's columns, worked out by hand: rank 0 computes 5 of 9 ms.
TEST(TimelineSvg, TellsEachRanksBubbleAndStash) {
  const std::string svg = timeline_svg(test::two_ranks("measured", 1), "t");
  for (const char* text : {">bubble</text>", ">stash</text>", ">44.4%</text>", ">55.6%</text>",
                           "measured: bubble 50.0% of 9.000 ms"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_EQ(test::count(svg, ">1</text>"), 2U) << "one microbatch is kept on each rank";
}

// Steps that follow each other are told apart by their updates; one alone has no border.
TEST(TimelineSvg, MarksTheBordersOfSteps) {
  EXPECT_THAT(timeline_svg(test::two_ranks("measured", 1), "t"), Not(HasSubstr("class=\"step\"")));
  const std::string svg = timeline_svg(test::two_ranks("measured", 3), "t");
  EXPECT_EQ(test::count(svg, "class=\"step\""), 3U * 2 + 1) << "and one in the legend";
  EXPECT_THAT(svg, HasSubstr("update, border of a step"));
}

// Of slots: no waits, no messages, times without a unit.
TEST(TimelineSvg, OfSlotsShowsWorkOnly) {
  Trace trace = test::two_ranks("simulated", 1);
  for (RankTrace& rank : trace.ranks) {
    for (TraceEvent& event : rank.events) {
      event.start_s *= 1000;
      event.end_s *= 1000;
      event.wait_s *= 1000;
    }
  }
  const std::string svg = timeline_svg(trace, "t", TraceClock::kSlots);
  EXPECT_THAT(svg, HasSubstr("<title>1B0, 2 from 4</title>"));
  EXPECT_THAT(svg, HasSubstr(">slots</text>"));
  EXPECT_THAT(svg, HasSubstr("bubble 50.0% of 9 slots"));
  EXPECT_THAT(svg, Not(HasSubstr("waits")));
  EXPECT_THAT(svg, Not(HasSubstr("STEP")));
}

TEST(TimelineSvg, IsTheSameEachTime) {
  const Trace trace = test::two_ranks("measured", 50);
  EXPECT_EQ(timeline_svg(trace, "t"), timeline_svg(trace, "t"));
}

TEST(TimelineSvg, TakesTracesOfNothing) {
  Trace trace;
  EXPECT_TRUE(test::is_nested(timeline_svg(trace, "none")));
  trace.ranks.resize(2);
  EXPECT_THAT(timeline_svg(trace, "no events"), HasSubstr("rank 0, idle"));
  trace.ranks[0].events = {test::event("0STEP", 0, 0)};
  EXPECT_TRUE(test::is_nested(timeline_svg(trace, "in no time")));
}

}  // namespace
}  // namespace millrace
