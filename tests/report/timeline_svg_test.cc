#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Each element opened is closed, in order: enough of XML to catch what a browser would refuse.
bool is_nested(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) {
      return false;
    }
    const std::string tag = text.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      if (open.empty() || "/" + open.back() != tag) {
        return false;
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty();
}

TEST(TimelineSvg, DrawsATinyTrace) {
  const std::string svg = timeline_svg(test::two_ranks("simulated", 1), "1f1b, 2 ranks");
  EXPECT_EQ(svg, read_file("tests/report/golden/timeline.svg"))
      << "if the new picture is right, keep it:\n"
      << svg;
  EXPECT_TRUE(is_nested(svg));
}

TEST(TimelineSvg, EscapesItsTitle) {
  const std::string svg = timeline_svg(Trace(), "a<b>&\"c\x01");
  EXPECT_THAT(svg, HasSubstr("<title>a&lt;b&gt;&amp;&quot;c?</title>"));
  EXPECT_TRUE(is_nested(svg));
}

TEST(TimelineSvg, LeavesOutTextThatDoesNotFit) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  rank.events = {test::event("0F0", 0, 0.001), test::event("0F1", 0.001, 1)};
  trace.ranks = {rank};
  const std::string svg = timeline_svg(trace, "");
  EXPECT_THAT(svg, HasSubstr(">F1</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">F0</text>")));
  EXPECT_THAT(svg, HasSubstr("<title>0F0, 1.000 ms from 0 s</title>"));
}

TEST(TimelineSvg, CutsALongTraceToItsSteadyPart) {
  const std::string svg = timeline_svg(test::two_ranks("measured", 4000), "long");
  EXPECT_THAT(svg, HasSubstr("long (steps 1999 to 2002)"));
  EXPECT_LT(svg.size(), 20000U);
  EXPECT_TRUE(is_nested(svg));
}

TEST(TimelineSvg, TakesTracesOfNothing) {
  Trace trace;
  EXPECT_TRUE(is_nested(timeline_svg(trace, "none")));
  trace.ranks.resize(2);
  EXPECT_THAT(timeline_svg(trace, "no events"), HasSubstr("rank 0, idle"));
  trace.ranks[0].events = {test::event("0STEP", 0, 0)};
  EXPECT_TRUE(is_nested(timeline_svg(trace, "in no time")));
}

}  // namespace
}  // namespace millrace
