#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using internal::difference;
using internal::in_unit;
using internal::rank_ranges;
using internal::unit_for;

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& line : split(text, '\n')) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

TEST(StageTable, PutsPredictedBesideMeasured) {
  EXPECT_EQ(stage_table(test::two_stages(), test::two_ranks("simulated", 4),
                        test::two_ranks("measured", 8, 1.1)),
            R"(                    ---- predicted, ms a step -----  ----- measured, ms a step -----
stage layers ranks  compute comm  wait update  busy  compute comm  wait update  busy    diff
    0      3     0    5.000    0 4.000  1.000 6.000    5.500    0 4.400  1.100 6.600  +10.0%
    1      1     1    4.000    0     0  1.000 5.000    4.400    0     0  1.100 5.500  +10.0%
idle: 2
step: predicted 10.0 ms, measured 11.0 ms, difference +10.0%
)");
}

TEST(StageTable, LeavesOutATraceThatIsNotThere) {
  EXPECT_EQ(stage_table(test::two_stages(), Trace(), test::two_ranks("measured", 8)),
            R"(                    ----- measured, ms a step -----
stage layers ranks  compute comm  wait update  busy
    0      3     0    5.000    0 4.000  1.000 6.000
    1      1     1    4.000    0     0  1.000 5.000
idle: 2
step: measured 10.0 ms
)");
  EXPECT_EQ(stage_table(test::two_stages(), test::two_ranks("simulated", 8), Trace()),
            R"(                    ---- predicted, ms a step -----
stage layers ranks  compute comm  wait update  busy
    0      3     0    5.000    0 4.000  1.000 6.000
    1      1     1    4.000    0     0  1.000 5.000
idle: 2
step: predicted 10.0 ms
)");
  EXPECT_EQ(stage_table(test::two_stages(), Trace(), Trace()), R"(stage layers ranks
    0      3     0
    1      1     1
idle: 2
)");
}

TEST(StageTable, FitsATerminalWhateverTheNumbers) {
  Plan plan;
  plan.workers = 512;
  plan.stages.resize(128);
  Trace trace;
  trace.num_steps = 3;
  trace.step_s = 99999;
  for (int rank = 0; rank < 512; ++rank) {
    plan.stages[static_cast<std::size_t>(rank % 128)].ranks.push_back(rank);
    plan.stages[static_cast<std::size_t>(rank % 128)].layers.push_back("l" + std::to_string(rank));
    RankTrace times;
    times.rank = rank;
    times.stages = {rank % 128};
    times.compute_s = 500.0 * (rank + 1);
    times.communicate_s = 1e-5;
    times.wait_s = 29999;
    times.update_s = 12.345;
    trace.ranks.push_back(times);
  }
  Trace measured = trace;
  for (RankTrace& times : measured.ranks) {
    times.compute_s *= 0.9;
  }
  const std::string text = stage_table(plan, trace, measured);
  EXPECT_LE(longest_line(text), 100U) << text.substr(0, 600);
  EXPECT_GT(longest_line(text), 90U);
  EXPECT_EQ(split(text, '\n').size(), 2U + 128 + 1 + 1);  // and what follows the last newline
}

TEST(StageTable, ShowsAStageThatThePlanLacks) {
  Trace trace = test::two_ranks("measured", 2);
  trace.ranks[1].stages = {3};
  const std::string text = stage_table(Plan(), Trace(), trace);
  EXPECT_NE(text.find("\n    3      0     -"), std::string::npos) << text;
}

// Ranks of several stages are one row for each set of stages.
TEST(StageTable, HasARowForEachSetOfStages) {
  Plan plan;
  plan.workers = 4;
  plan.stages = {{{"a", "b"}, {0, 2}}, {{"c"}, {1, 3}}, {{"d"}, {0, 2}}, {{"e"}, {1, 3}}};
  Trace trace = test::two_ranks("measured", 2);
  trace.ranks[0].stages = {0, 2};
  trace.ranks[1].stages = {1, 3};
  const std::string text = stage_table(plan, Trace(), trace);
  EXPECT_NE(text.find("\n  0,2      3   0,2 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n  1,3      2   1,3 "), std::string::npos) << text;
}

TEST(StageTable, ShortensManyStagesOfARank) {
  Plan plan;
  plan.workers = 8;
  for (int stage = 0; stage < 128; ++stage) {
    plan.stages.push_back({{"l" + std::to_string(stage)}, {stage % 8}});
  }
  const std::string text = stage_table(plan, Trace(), Trace());
  EXPECT_LE(longest_line(text), 30U) << text;
  EXPECT_NE(text.find("16 stages     16     0"), std::string::npos) << text;
}

TEST(StageTable, TakesARunOfNoSteps) {
  Trace trace = test::two_ranks("measured", 0);
  EXPECT_NE(stage_table(test::two_stages(), trace, trace).find("step: predicted"),
            std::string::npos);
}

TEST(StageRows, WritesNumbersInFiveCharacters) {
  const internal::TimeUnit ms{1e-3, "ms"};
  EXPECT_EQ(in_unit(0, ms), "0");
  EXPECT_EQ(in_unit(0.0000004, ms), "0.000");
  EXPECT_EQ(in_unit(0.00123456, ms), "1.235");
  EXPECT_EQ(in_unit(0.0099994, ms), "9.999");
  EXPECT_EQ(in_unit(0.0099996, ms), "10.00");
  EXPECT_EQ(in_unit(0.0999951, ms), "100.0");
  EXPECT_EQ(in_unit(0.99996, ms), "1000");
  EXPECT_EQ(in_unit(99.9994, ms), "99999");
}

TEST(StageRows, ChoosesOneUnitForATable) {
  EXPECT_EQ(unit_for(12.0).name, "s");
  EXPECT_EQ(unit_for(9.0).name, "ms");
  EXPECT_EQ(unit_for(0.0009).name, "us");
  EXPECT_EQ(unit_for(0.0).name, "ms");
}

TEST(StageRows, ComparesMeasuredWithPredicted) {
  EXPECT_EQ(difference(10, 11), "+10.0%");
  EXPECT_EQ(difference(10, 5), "-50.0%");
  EXPECT_EQ(difference(10, 10), "+0.0%");
  EXPECT_EQ(difference(1, 12.34), "+1134%");
  EXPECT_EQ(difference(1, 1e6), ">+9999%");
  EXPECT_EQ(difference(0, 1), "-");
}

TEST(StageRows, WritesRanksAsRanges) {
  EXPECT_EQ(rank_ranges({}, 9), "-");
  EXPECT_EQ(rank_ranges({4}, 9), "4");
  EXPECT_EQ(rank_ranges({3, 0, 1, 2, 6}, 9), "0-3,6");
  EXPECT_EQ(rank_ranges({0, 2, 4, 6, 8}, 9), "0,2,4,6,8");
  EXPECT_EQ(rank_ranges({0, 2, 4, 6, 10}, 9), "5 ranks");
}

}  // namespace
}  // namespace millrace
