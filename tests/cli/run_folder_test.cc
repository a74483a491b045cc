#include "millrace/cli/common/run_folder.h"

#include <gmock/gmock.h>

#include <cmath>

#include "millrace/base/file.h"
#include "millrace/cli/commands.h"
#include "tests/base/caught.h"
#include "tests/cli/cli_testing.h"

namespace millrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Trace small_trace(const std::string& source, double scale) {
  Trace trace;
  trace.source = source;
  trace.num_steps = 1;
  trace.step_s = 4 * scale;
  trace.window_s = 4 * scale;
  for (int rank = 0; rank < 2; ++rank) {
    RankTrace lane;
    lane.rank = rank;
    lane.stages = {rank};
    lane.events.push_back({Action::of(ActionKind::kForward, rank, 0), 0, scale, 0, 0});
    lane.events.push_back({Action::of(ActionKind::kBackward, rank, 0), scale, 3 * scale, 0, 0});
    lane.compute_s = 3 * scale;
    trace.ranks.push_back(lane);
  }
  return trace;
}

constexpr const char* kMetrics =
    R"({"event": "note", "text": "cores are shared"}
{"event": "step", "step": 1, "total_steps": 3, "epoch": 0, "step_in_epoch": 1, "steps_in_epoch": 3, "loss": 2.5, "samples": 32, "samples_per_s": 100.0, "time_left_s": 1.0, "lr": 0.05}
{"event": "step", "step": 2, "epoch": 0, "loss": null, "samples_per_s": 110.5}
{"event": "checkpoint", "step": 2, "path": "checkpoints/step-2"}
{"event": "eval", "epoch": 1, "step": 2, "accuracy": 0.75, "loss": 0.5, "correct": 48, "samples": 64}
{"event": "done", "run_dir": "runs/x", "steps": 2, "samples": 64, "train_s": 3.0, "accuracy": 0.75, "interrupted": false}
)";

// A run folder with everything but the two files made from it.
class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    folder_.write(kConfigFile, read_file("tests/cli/data/run.toml"));
    folder_.write(kPlanFile, read_file("tests/cli/data/plan.json"));
    folder_.write(kPredictionFile, to_json(to_value(small_trace("simulated", 1e-3))));
    folder_.write(kTraceFile, to_json(to_value(small_trace("measured", 1.1e-3))));
    folder_.write(kMetricsFile, kMetrics);
  }
  RunReport read() const { return read_run(folder_.path()); }
  void remove(const char* file) const { std::filesystem::remove(folder_.path(file)); }

  TemporaryFolder folder_;
};

TEST_F(RunFolderTest, ReadsEveryFile) {
  const RunReport report = read();
  EXPECT_EQ(report.config_toml, read_file("tests/cli/data/run.toml"));
  EXPECT_EQ(report.plan.num_stages(), 2);
  ASSERT_TRUE(report.predicted && report.measured);
  EXPECT_EQ(*report.predicted, small_trace("simulated", 1e-3));
  EXPECT_EQ(*report.measured, small_trace("measured", 1.1e-3));
  ASSERT_EQ(report.steps.size(), 2U);
  EXPECT_EQ(report.steps[0].loss, 2.5);
  EXPECT_EQ(report.steps[0].total_steps, 3);
  EXPECT_EQ(report.steps[0].lr, 0.05);
  EXPECT_TRUE(std::isnan(report.steps[1].loss));
  EXPECT_EQ(report.steps[1].samples_per_s, 110.5);
  ASSERT_EQ(report.evals.size(), 1U);
  EXPECT_EQ(report.evals[0].accuracy, 0.75);
  EXPECT_EQ(report.evals[0].correct, 48);
  EXPECT_EQ(report.evals[0].predictions, 64) << "not in the file: one a sample";
  EXPECT_THAT(report.notes, ElementsAre("cores are shared"));
  ASSERT_TRUE(report.done.has_value());
  EXPECT_EQ(report.done->steps, 2);
  EXPECT_FALSE(report.done->interrupted);
}

TEST_F(RunFolderTest, TheTitleIsTheRunsNameOrTheFolders) {
  EXPECT_THAT(folder_.path(), HasSubstr(read().title));
  folder_.write(kConfigFile, "name = \"first try\"\n");
  EXPECT_EQ(read().title, "first try");
}

TEST_F(RunFolderTest, ARunThatWentOnHasNotEnded) {
  folder_.write(kMetricsFile, std::string(kMetrics) +
                                  R"({"event": "step", "step": 3, "epoch": 1, "loss": 1.5})"
                                  "\n");
  const RunReport report = read();
  EXPECT_EQ(report.steps.size(), 3U);
  EXPECT_FALSE(report.done.has_value());
}

TEST_F(RunFolderTest, ATornLastLineIsLeftOut) {
  folder_.write(kMetricsFile, std::string(kMetrics) + R"({"event": "step", "ste)");
  EXPECT_EQ(read().steps.size(), 2U);
}

TEST_F(RunFolderTest, OtherDamageIsRefusedWithItsLine) {
  const std::string lines[] = {"{broken\n", "{\"event\": \"step\", \"step\": \"two\"}\n",
                               "{\"step\": 1}\n"};
  for (const std::string& line : lines) {
    folder_.write(kMetricsFile, kMetrics + line);
    const Error error = caught([this] { read(); });
    EXPECT_EQ(error.code(), ErrorCode::kBadFile) << line;
    EXPECT_EQ(error.file(), folder_.path(kMetricsFile)) << line;
    EXPECT_EQ(error.line(), 7) << error.what();
  }
}

TEST_F(RunFolderTest, WithoutTracesOrMetricsThereIsStillAPage) {
  for (const char* file : {kTraceFile, kPredictionFile, kMetricsFile}) {
    remove(file);
    const RunReport report = read();
    EXPECT_FALSE(report.measured.has_value());
    EXPECT_EQ(write_report(folder_.path()), folder_.path(kReportFile));
  }
  EXPECT_TRUE(read().steps.empty());
}

TEST_F(RunFolderTest, WithoutConfigOrPlanItIsNoRun) {
  for (const char* file : {kPlanFile, kConfigFile}) {
    remove(file);
    const Error error = caught([this] { read(); });
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_THAT(error.what(), HasSubstr(file));
  }
  EXPECT_THAT(caught([this] { read_run(folder_.path("nothing")); }).what(),
              HasSubstr("no such folder"));
}

TEST_F(RunFolderTest, WritesThePageAndTheLanes) {
  EXPECT_EQ(write_report(folder_.path()), folder_.path(kReportFile));
  EXPECT_THAT(read_file(folder_.path(kReportFile)), HasSubstr("cores are shared"));
  const std::string lanes = read_file(folder_.path(kPerfettoFile));
  EXPECT_EQ(parse_json(lanes, "lanes").root.kind, Value::Kind::kObject);
  EXPECT_THAT(lanes, HasSubstr("predicted"));
  EXPECT_THAT(lanes, HasSubstr("measured"));
}

TEST_F(RunFolderTest, WithoutTracesThereAreNoLanes) {
  remove(kTraceFile);
  remove(kPredictionFile);
  write_report(folder_.path());
  EXPECT_FALSE(std::filesystem::exists(folder_.path(kPerfettoFile)));
}

// `report --draw`: the measured lanes, those of the prediction where nothing was measured.
TEST_F(RunFolderTest, DrawsTheLanesAsAPicture) {
  ReportArgs args;
  args.dir = folder_.path();
  const auto report = [&] {
    return printed_by([&] {
      Output output(true);
      return run_report(args, output);
    });
  };
  EXPECT_EQ(parse_json(report().out, "stdout").root.find("timeline"), nullptr);
  args.draw = "svg";
  const Document answer = parse_json(report().out, "stdout");
  EXPECT_EQ(answer.root.find("timeline")->string, folder_.path("timeline.svg"));
  EXPECT_THAT(read_file(folder_.path("timeline.svg")), HasSubstr("measured: bubble 0.0% of"));
  args.draw = "html";
  remove(kTraceFile);
  report();
  EXPECT_THAT(read_file(folder_.path("timeline.html")), HasSubstr("simulated: bubble"));
  remove(kPredictionFile);
  Output output(true);
  EXPECT_THAT(caught([&] { run_report(args, output); }).message(), HasSubstr("neither"));
  args.draw = "png";
  EXPECT_THAT(caught([&] { run_report(args, output); }).message(), HasSubstr("use svg or html"));
}

}  // namespace
}  // namespace millrace::cli
