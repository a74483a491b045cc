#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(StageWarnings, NoneWithinTheTolerance) {
  const Plan plan = test::two_stages();
  const Trace predicted = test::two_ranks("simulated", 4);
  EXPECT_TRUE(stage_warnings(plan, predicted, test::two_ranks("measured", 8, 1.19), 0.2).empty());
  EXPECT_TRUE(stage_warnings(plan, predicted, test::two_ranks("measured", 8, 0.81), 0.2).empty());
  EXPECT_EQ(stage_warnings(plan, predicted, test::two_ranks("measured", 8, 1.21), 0.2).size(), 2U);
  EXPECT_EQ(stage_warnings(plan, predicted, test::two_ranks("measured", 8, 0.79), 0.2).size(), 2U);
}

// Stage 1 is predicted 4 ms of computing and 1 ms of updates a step.
TEST(StageWarnings, NameTheStageWhatChangedAndWhatToDo) {
  const Plan plan = test::two_stages();
  const Trace predicted = test::two_ranks("simulated", 4);
  Trace measured = test::two_ranks("measured", 4);
  measured.ranks[1].compute_s += 4 * 5e-3;
  std::vector<std::string> warnings = stage_warnings(plan, predicted, measured, 0.2);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("stage 1 took +100% against its prediction"));
  EXPECT_THAT(warnings[0], HasSubstr("computing (9.000 ms against 4.000 ms a step)"));
  EXPECT_THAT(warnings[0], HasSubstr("--fresh"));

  measured = test::two_ranks("measured", 4);
  measured.ranks[1].communicate_s += 4 * 2e-3;
  warnings = stage_warnings(plan, predicted, measured, 0.2);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("stage 1 took +40.0%"));
  EXPECT_THAT(warnings[0], HasSubstr("communication"));
  EXPECT_THAT(warnings[0], HasSubstr("doctor --measure"));

  measured = test::two_ranks("measured", 4);
  measured.ranks[0].compute_s -= 4 * 3e-3;
  warnings = stage_warnings(plan, predicted, measured, 0.2);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("stage 0 took -50.0%"));
  EXPECT_THAT(warnings[0], HasSubstr("busier while the layers were profiled"));
}

TEST(StageWarnings, WhatOnlyWaitsIsNoReason) {
  const Trace predicted = test::two_ranks("simulated", 4);
  Trace measured = test::two_ranks("measured", 4);
  measured.ranks[0].wait_s *= 10;
  EXPECT_TRUE(stage_warnings(test::two_stages(), predicted, measured, 0.2).empty());
  EXPECT_TRUE(stage_warnings(test::two_stages(), predicted, Trace(), 0.2).empty());
}

}  // namespace
}  // namespace millrace
