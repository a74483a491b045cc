#include "millrace/report/internal/page_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/base/document.h"
#include "millrace/base/random.h"
#include "millrace/report/internal/escape.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using internal::loss_curve;
using internal::LossCurve;
using internal::page_data;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<StepEvent> steps_of(const std::vector<double>& losses) {
  std::vector<StepEvent> steps(losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    steps[i].step = static_cast<int64_t>(i) + 1;
    steps[i].loss = losses[i];
  }
  return steps;
}

TEST(LossCurve, KeepsAShortRunWhole) {
  const LossCurve curve = loss_curve(steps_of({3, 2, 2.5}), 100);
  EXPECT_EQ(curve.step, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(curve.raw, (std::vector<double>{3, 2, 2.5}));
  EXPECT_EQ(curve.smooth_steps, 1);
  EXPECT_TRUE(loss_curve({}, 100).step.empty());
}

TEST(LossCurve, ThinsKeepingTheExtremes) {
  const RandomKey key(11);
  std::vector<double> losses;
  for (uint64_t i = 0; i < 100000; ++i) {
    losses.push_back(key.uniform(i));
  }
  losses[54321] = 40;
  losses[12345] = -7;
  const LossCurve curve = loss_curve(steps_of(losses), 3000);
  EXPECT_LE(curve.step.size(), 3000U);
  EXPECT_GE(curve.step.size(), 2900U);
  EXPECT_TRUE(std::is_sorted(curve.step.begin(), curve.step.end()));
  for (std::size_t i = 0; i < curve.step.size(); ++i) {
    ASSERT_EQ(curve.raw[i], losses[static_cast<std::size_t>(curve.step[i]) - 1]);
  }
  EXPECT_EQ(*std::max_element(curve.raw.begin(), curve.raw.end()), 40);
  EXPECT_EQ(*std::min_element(curve.raw.begin(), curve.raw.end()), -7);
}

// Closed form: the mean of a constant is that constant, and that of a line is the line where both
// sides reach far.
TEST(LossCurve, SmoothsToBothSides) {
  std::vector<double> losses;
  for (int i = 0; i < 1200; ++i) {
    losses.push_back(5 - 0.001 * i);
  }
  const LossCurve curve = loss_curve(steps_of(losses), 4000);
  ASSERT_EQ(curve.step.size(), losses.size());
  EXPECT_EQ(curve.smooth_steps, 20);
  for (std::size_t i = 400; i < 800; ++i) {
    EXPECT_NEAR(curve.smooth[i], losses[i], 1e-6);
  }
  const LossCurve flat = loss_curve(steps_of(std::vector<double>(50, 0.25)), 4000);
  EXPECT_NEAR(flat.smooth.front(), 0.25, 1e-12);
  EXPECT_NEAR(flat.smooth.back(), 0.25, 1e-12);
}

TEST(LossCurve, ShowsWhereTheLossIsNoNumber) {
  std::vector<double> losses(30000, 1.0);
  losses[20000] = kNan;
  const LossCurve curve = loss_curve(steps_of(losses), 100);
  const auto found = std::find(curve.step.begin(), curve.step.end(), 20001);
  ASSERT_NE(found, curve.step.end());
  const auto at = static_cast<std::size_t>(found - curve.step.begin());
  EXPECT_TRUE(std::isnan(curve.raw[at]));
  EXPECT_TRUE(std::isnan(curve.smooth[at]));
  EXPECT_TRUE(std::isfinite(curve.smooth.back()));
}

// Reads the page's JSON as the script does.
Value data_of(const RunReport& report, std::size_t max_events = 1000) {
  return parse_json(page_data(report, max_events), "page").root;
}

const Value& timeline_of(const Value& data) { return *data.find("timeline"); }

int64_t count_events(const Value& timeline, const char* side) {
  int64_t count = 0;
  for (const Value& worker : timeline.find("workers")->array) {
    count += static_cast<int64_t>(worker.find(side)->array.size());
  }
  return count;
}

TEST(PageData, AlignsBothTracesAtTheStartOfAStep) {
  RunReport report;
  report.predicted = test::two_ranks("simulated", 3);
  report.measured = test::two_ranks("measured", 20, 1.5);
  const Value data = data_of(report);
  const Value& timeline = timeline_of(data);
  ASSERT_EQ(timeline.find("workers")->array.size(), 2U);
  for (const char* side : {"predicted", "measured"}) {
    bool begins_at_zero = false;
    for (const Value& event : timeline.find("workers")->array[0].find(side)->array) {
      begins_at_zero = begins_at_zero ||
                       (event.array[2].integer == 0 && event.array[0].string.substr(0, 2) == "0F");
    }
    EXPECT_TRUE(begins_at_zero) << side;
  }
  EXPECT_EQ(timeline.find("measured")->find("first_step")->integer, 8);
  EXPECT_EQ(timeline.find("measured")->find("view")->integer, 6 * 15000000);
  EXPECT_EQ(timeline.find("predicted")->find("view")->integer, 3 * 10000000);
}

TEST(PageData, HoldsEveryFieldOfAnEvent) {
  RunReport report;
  report.measured = test::two_ranks("measured", 1);
  const Value data = data_of(report);
  const Value& event = timeline_of(data).find("workers")->array[0].find("measured")->array[1];
  EXPECT_EQ(event.array[0].string, "0RECV_B0<1");
  EXPECT_EQ(event.array[1].integer, 6);
  EXPECT_EQ(event.array[2].integer, 2000000);
  EXPECT_EQ(event.array[3].integer, 4000000);
  EXPECT_EQ(event.array[4].integer, 4000000);
  EXPECT_EQ(event.array[5].integer, 64);
  EXPECT_EQ(timeline_of(data).find("predicted")->kind, Value::Kind::kNull);
}

TEST(PageData, KeepsTheEventsAroundTheSteadyPart) {
  RunReport report;
  report.measured = test::two_ranks("measured", 1000);
  const Value data = data_of(report, 300);
  const Value& about = *timeline_of(data).find("measured");
  const int64_t kept = count_events(timeline_of(data), "measured");
  EXPECT_EQ(about.find("kept")->integer, kept);
  EXPECT_EQ(about.find("events")->integer, 7000);
  EXPECT_NEAR(static_cast<double>(kept), 300, 7);
  EXPECT_EQ(about.find("num_steps")->integer, 6);
}

TEST(PageData, ShowsFewerStepsWhenTheyAreLarge) {
  RunReport report;
  report.measured = test::two_ranks("measured", 1000);
  Value data = data_of(report, 20);
  EXPECT_EQ(timeline_of(data).find("measured")->find("num_steps")->integer, 2);
  // Even one step is too large: its first part is shown, and the view ends where that ends.
  data = data_of(report, 4);
  EXPECT_EQ(timeline_of(data).find("measured")->find("num_steps")->integer, 1);
  EXPECT_LE(timeline_of(data).find("measured")->find("view")->integer, 6000000);
  EXPECT_GE(count_events(timeline_of(data), "measured"), 4);
  EXPECT_LE(count_events(timeline_of(data), "measured"), 6);
}

TEST(PageData, TakesNothingAndNonsense) {
  EXPECT_TRUE(timeline_of(data_of(RunReport())).find("workers")->array.empty());
  RunReport report;
  report.predicted = Trace();
  report.measured = Trace();
  report.measured->ranks.resize(1);
  report.steps = steps_of({kNan, std::numeric_limits<double>::infinity(), 1});
  report.evals.resize(1);
  report.evals[0].accuracy = kNan;
  const Value data = data_of(report);
  EXPECT_EQ(data.find("loss")->find("raw")->array.size(), 3U);
  EXPECT_EQ(data.find("loss")->find("raw")->array[1].kind, Value::Kind::kNull);
  EXPECT_EQ(data.find("evals")->find("accuracy")->array[0].kind, Value::Kind::kNull);
}

TEST(Escape, MakesTextHarmless) {
  EXPECT_EQ(internal::escape_markup("<a href='x'>\"&\x02\n"),
            "&lt;a href=&#39;x&#39;&gt;&quot;&amp;?\n");
  EXPECT_EQ(internal::json_string("a\"b\\c</script>\n"), "\"a\\\"b\\\\c\\u003c/script>\\u000a\"");
}

}  // namespace
}  // namespace millrace
