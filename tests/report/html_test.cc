#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/report/internal/assets.h"
#include "millrace/report/report.h"
#include "tests/report/traces.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunReport full_report() {
  RunReport report;
  report.title = "lenet-two";
  report.config_toml = "[model]\nname = \"lenet\"\n";
  report.plan = test::two_stages();
  report.plan.memory.resize(3);
  report.plan.memory[0].weight_bytes = 4200000;
  report.predicted = test::two_ranks("simulated", 6);
  report.measured = test::two_ranks("measured", 12, 1.25);
  for (int i = 1; i <= 30; ++i) {
    StepEvent step;
    step.step = i;
    step.loss = 2.0 / i;
    step.samples_per_s = 1234;
    report.steps.push_back(step);
  }
  EvalEvent eval;
  eval.epoch = 1;
  eval.step = 30;
  eval.accuracy = 0.8725;
  eval.correct = 8725;
  eval.samples = 5000;
  eval.predictions = 10000;
  report.evals.push_back(eval);
  report.notes = {"two workers are enough"};
  DoneEvent done;
  done.steps = 30;
  done.train_s = 12.5;
  report.done = done;
  return report;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

// The page without the plotting library, whose text is not ours.
std::string own_part(std::string page) {
  const std::size_t at = page.find(internal::kPlotScript);
  EXPECT_NE(at, std::string::npos);
  page.erase(at, internal::kPlotScript.size());
  return page;
}

TEST(ReportHtml, ShowsEverythingOfARun) {
  const std::string page = report_html(full_report());
  for (const char* text :
       {"<title>lenet-two - Millrace</title>", "<h1>lenet-two</h1>", "<dd>87.25 %</dd>",
        "<dd>30</dd>", "<dd>12.5 s</dd>", "<dd>1234</dd>", "8,725 right of 10,000",
        "<li>two workers are enough</li>", "<div id=\"loss\"", "<div id=\"accuracy\"",
        "<div id=\"timeline\"",
        "conv1 to conv2 (3 layers) on rank 0, predicted memory of a rank 4.2 MB",
        "<li>fc1 on rank 1</li>", "Left idle: rank 2.", "this plan 10.0 ms, one worker 19.0 ms",
        "<b>pipedream</b> cut the model into 2 stages for 3 workers", "<b>1f1b</b>",
        "name = &quot;lenet&quot;", "<td>+25.0%</td>"}) {
    EXPECT_THAT(own_part(page), HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("{{plot")));
  EXPECT_LT(page.size(), 200000U);
}

TEST(ReportHtml, ComparesStages) {
  EXPECT_THAT(
      report_html(full_report()),
      HasSubstr("<tr><th>0</th><td>3</td><td>0</td><td>5.000</td><td>0</td><td>4.000</td>"
                "<td>1.000</td><td>6.000</td><td>6.250</td><td>0</td><td>5.000</td><td>1.250</td>"
                "<td>7.500</td><td>+25.0%</td></tr>"));
}

TEST(ReportHtml, LoadsNothing) {
  const std::string page = report_html(full_report());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  const std::string own = own_part(page);
  EXPECT_THAT(own, Not(HasSubstr("http://")));
  EXPECT_THAT(own, Not(HasSubstr("https://")));
  EXPECT_THAT(own, Not(HasSubstr("@import")));
  EXPECT_THAT(own, Not(HasSubstr("src=")));
  EXPECT_EQ(count(own, "href="), 1U);
  EXPECT_THAT(own, HasSubstr("<link rel=\"icon\" href=\"data:,\">"));
}

TEST(ReportHtml, KeepsTheLicenceOfWhatItEmbeds) {
  EXPECT_THAT(report_html(RunReport()), HasSubstr("Copyright (c) 2022 Leon Sorokin"));
  for (std::string_view asset :
       {internal::kPageStyle, internal::kPageScript, internal::kTimelineScript,
        internal::kPlotScript, internal::kPlotStyle, internal::kPlotLicence}) {
    EXPECT_EQ(asset.find("</"), std::string_view::npos);  // would end its element
    EXPECT_FALSE(asset.empty());
  }
}

TEST(ReportHtml, EscapesEveryText) {
  const std::string bad = "</script><b>'\"&{{data}}";
  RunReport report = full_report();
  const std::string plain = report_html(report);
  report.title = bad;
  report.config_toml = bad;
  report.notes = {bad};
  report.plan.planner = bad;
  report.plan.schedule = bad;
  report.plan.rule = bad;
  report.plan.stages[0].layers = {bad, bad};
  report.predicted->source = bad;
  const std::string page = report_html(report);
  EXPECT_EQ(page.find(bad), std::string::npos);
  EXPECT_EQ(count(page, "</script>"), count(plain, "</script>"));
  EXPECT_EQ(count(page, "<b>"), count(plain, "<b>"));
  // Title twice, configuration, note, planner, schedule, rule, two layers; none filled in once
  // more.
  EXPECT_EQ(count(page, "&lt;/script&gt;&lt;b&gt;&#39;&quot;&amp;{{data}}"), 9U);
}

TEST(ReportHtml, TakesARunOfNothing) {
  const std::string page = report_html(RunReport());
  for (const char* text : {"<h1>untitled run</h1>", "No step was recorded.",
                           "No evaluation was made.", "No actions were recorded.",
                           "No stage is known.", "There is no plan.", "It was not recorded."}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("<dl")));
}

TEST(ReportHtml, SaysWhichTraceIsMissing) {
  RunReport report = full_report();
  report.measured.reset();
  EXPECT_THAT(report_html(report), HasSubstr("There is no measured trace."));
  report = full_report();
  report.predicted->ranks.clear();
  EXPECT_THAT(report_html(report), HasSubstr("There is no predicted trace."));
  report = full_report();
  EXPECT_THAT(report_html(report), Not(HasSubstr("There is no")));
}

TEST(ReportHtml, StaysSmallHoweverLongTheRun) {
  RunReport report = full_report();
  report.measured = test::two_ranks("measured", 50000);
  report.steps.resize(100000);
  for (std::size_t i = 0; i < report.steps.size(); ++i) {
    report.steps[i].step = static_cast<int64_t>(i);
    report.steps[i].loss = 1.0 / static_cast<double>(i + 1);
  }
  EXPECT_LT(report_html(report).size(), 2500000U);
}

TEST(ReportHtml, SaysThatARunWasInterrupted) {
  RunReport report = full_report();
  report.done->interrupted = true;
  EXPECT_THAT(report_html(report), HasSubstr("The run was interrupted; it can be resumed."));
}

}  // namespace
}  // namespace millrace
