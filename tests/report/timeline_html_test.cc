#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/report/report.h"
#include "tests/report/markup.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TimelineHtml, HoldsTheWholeFigure) {
  const std::string page = timeline_html(test::two_ranks("measured", 2), "a<b & c");
  EXPECT_THAT(page, HasSubstr("<h1>a&lt;b &amp; c</h1>"));
  EXPECT_THAT(page, HasSubstr("rank 1, stage 1"));
  EXPECT_THAT(page, HasSubstr("<title>0F1, 2.000 ms from 10.0 ms</title>"));
  EXPECT_THAT(page, HasSubstr("forward (F)"));
  EXPECT_THAT(page, HasSubstr(">wait</text>"));
  EXPECT_EQ(page.find("{{"), std::string::npos);
}

// Every box has a number and its own width, for the script; the picture without it has those that
// fit.
TEST(TimelineHtml, NumbersEveryBox) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  rank.events = {test::event("0F0", 0, 0.001), test::event("0F1", 0.001, 1)};
  trace.ranks = {rank};
  const std::string page = timeline_html(trace, "t");
  EXPECT_EQ(test::count(page, "data-w="), 2U);
  EXPECT_EQ(test::count(timeline_svg(trace, "t"), "data-w="), 0U);
}

TEST(TimelineHtml, LoadsNothingAndSuitsLightAndDark) {
  const std::string page = timeline_html(test::two_ranks("measured", 2), "t");
  for (const char* part : {"http:", "https:", "src=", "@import", "url(h"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
}

TEST(TimelineHtml, StaysSmallAndNested) {
  for (const int steps : {1, 500, 20000}) {
    const std::string page = timeline_html(test::two_ranks("measured", steps), "t");
    EXPECT_LT(page.size(), 700000U) << steps;
    const std::size_t begin = page.find("<div class=\"figure\">");
    const std::size_t end = page.find("<script>");
    ASSERT_LT(begin, end);
    EXPECT_TRUE(test::is_nested(page.substr(begin, end - begin)));
  }
}

TEST(TimelineHtml, TakesTracesOfNothing) {
  Trace trace;
  EXPECT_THAT(timeline_html(trace, "none"), HasSubstr("nothing was computed"));
  trace.ranks.resize(2);
  EXPECT_THAT(timeline_html(trace, "no events"), HasSubstr("rank 0, idle"));
}

}  // namespace
}  // namespace millrace
