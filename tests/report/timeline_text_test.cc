#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/text.h"
#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// At least 40 columns are used: 14 of label, 3 of frame and 23 of chart, of 0.43 ms each.
TEST(TimelineText, DrawsOneStepInProportion) {
  EXPECT_EQ(timeline_text(test::two_ranks("measured", 1), 37),
            R"(rank 0 stage 0 |FFFFF.........BBBBBBBUU|
rank 1 stage 1 |     FFFFBBBBBUU       |
measured, step 1: 10.0 ms  column 435 us
  F forward  B backward  U update (STEP)
  . wait  blank idle
)");
}

TEST(TimelineText, ShowsStepsOfTheMiddle) {
  EXPECT_EQ(timeline_text(test::two_ranks("simulated", 20), 77),
            R"(rank 0 stage 0 |FF....BBBUFF....BBBUFF....BBBUFF....BBBUFF....BBBUFF....BBBU|
rank 1 stage 1 |  FFBBU     FFBBU     FFBBU     FFBBU     FFBBU     FFBBU   |
simulated, steps 8 to 13: 60.0 ms  column 1.000 ms  F forward  B backward
  U update (STEP)  . wait  blank idle
)");
}

TEST(TimelineText, KeepsToItsWidth) {
  const Trace trace = test::two_ranks("measured", 9);
  for (int columns : {40, 41, 60, 80, 100, 213}) {
    for (const std::string& line : split(timeline_text(trace, columns), '\n')) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
    }
  }
}

TEST(TimelineText, NamesWhatItDrawsOnly) {
  Trace trace;
  RankTrace rank;
  rank.stages = {0};
  rank.events = {test::event("0I0", 0, 1), test::event("0W0", 1, 2),
                 test::event("0REDUCE", 2, 4, 1), test::event("0SEND_B0>1", 4, 5)};
  trace.ranks = {rank};
  const std::string text = timeline_text(trace, 200);
  for (const char* name :
       {"I input gradient", "W weight gradient", "R reduce", "s send, receive", ". wait"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
  EXPECT_EQ(text.find("F forward"), std::string::npos);
  EXPECT_EQ(text.find("U update"), std::string::npos);
}

TEST(TimelineText, TakesTracesOfNothing) {
  EXPECT_EQ(timeline_text(Trace()), "measured: no actions were recorded\n");
  Trace trace = test::two_ranks("simulated", 1);
  trace.ranks[1].events.clear();
  trace.ranks[1].stages.clear();
  EXPECT_THAT(timeline_text(trace), HasSubstr("rank 1 idle    |       "));
  trace.ranks[0].events = {test::event("0F0", 1, 1)};  // all in no time
  EXPECT_THAT(timeline_text(trace), HasSubstr("rank 0 stage 0 |      "));
}

}  // namespace
}  // namespace millrace
