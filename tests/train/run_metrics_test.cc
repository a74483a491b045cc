#include "millrace/train/run_metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "millrace/base/file.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class MetricsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ =
        (fs::temp_directory_path() / ("millrace-metrics-" + std::to_string(::getpid()))).string();
    fs::remove(path_);
  }
  void TearDown() override { fs::remove(path_); }

  // A whole small run: a note, three steps, an evaluation and a checkpoint at step 2, done.
  void write_run() const {
    RunMetrics metrics(path_);
    metrics.on_note("begins");
    for (int64_t step = 1; step <= 3; ++step) {
      StepEvent event;
      event.step = step;
      event.loss = 0.5;
      event.lr = 0.125 * static_cast<double>(step);
      metrics.on_step(event);
      if (step == 2) {
        metrics.on_eval({.epoch = 1, .step = 2, .loss = 0.25, .accuracy = 0.5});
        metrics.on_checkpoint({.path = "somewhere", .step = 2});
        metrics.on_note("after step 2");
      }
    }
    metrics.on_done({.run_dir = "x", .steps = 3});
  }

  std::vector<std::string> events() const {
    std::vector<std::string> all;
    const std::string text = read_file(path_);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      const Document line = parse_json(text.substr(at, end - at), path_);
      const Value* step = line.root.find("step");
      all.push_back(line.root.find("event")->string +
                    (step != nullptr ? std::to_string(step->integer) : ""));
      at = end + 1;
    }
    return all;
  }

  std::string path_;
};

using Events = std::vector<std::string>;

TEST_F(MetricsFile, HoldsALineAnEvent) {
  write_run();
  EXPECT_EQ(events(),
            (Events{"note", "step1", "step2", "eval2", "checkpoint2", "note", "step3", "done"}));
  const std::string text = read_file(path_);
  EXPECT_NE(text.find("\"lr\": 0.375"), std::string::npos) << text;
}

TEST_F(MetricsFile, ALossThatIsNotFiniteIsNull) {
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    StepEvent event;
    event.loss = loss;
    EXPECT_EQ(to_value(event).find("loss")->kind, Value::Kind::kNull);
  }
}

TEST_F(MetricsFile, TheNormStandsThereWhereTheGradientIsClipped) {
  StepEvent event;
  EXPECT_EQ(to_value(event).find("gradient_norm"), nullptr);
  event.gradient_norm = 2.5;
  EXPECT_EQ(to_value(event).find("gradient_norm")->number, 2.5);
  event.gradient_norm = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_value(event).find("gradient_norm")->kind, Value::Kind::kNull);
}

TEST_F(MetricsFile, RewindKeepsWhatHappenedUpToTheCheckpoint) {
  write_run();
  rewind_metrics(path_, 2);
  EXPECT_EQ(events(), (Events{"note", "step1", "step2", "eval2", "checkpoint2", "note"}));
  rewind_metrics(path_, 1);
  EXPECT_EQ(events(), (Events{"note", "step1"}));
  rewind_metrics(path_, 0);
  EXPECT_EQ(events(), (Events{"note"}));
}

TEST_F(MetricsFile, RewindToTheEndTakesOutDoneAlone) {
  write_run();
  rewind_metrics(path_, 3);
  EXPECT_EQ(events(), (Events{"note", "step1", "step2", "eval2", "checkpoint2", "note", "step3"}));
  const std::string before = read_file(path_);
  rewind_metrics(path_, 3);
  EXPECT_EQ(read_file(path_), before);
}

TEST_F(MetricsFile, RewindDropsATornLastLine) {
  write_run();
  const std::string text = read_file(path_);
  const std::size_t step3 = text.find("{\"event\": \"step\", \"step\": 3");
  for (const std::size_t torn : {step3 + 1, step3 + 20, text.find('\n', step3)}) {
    write_file_atomically(path_, text.substr(0, torn));
    rewind_metrics(path_, 3);
    EXPECT_EQ(events().back(), "note") << torn;
    EXPECT_EQ(read_file(path_).back(), '\n');
  }
}

TEST_F(MetricsFile, ADamagedLineInTheMiddleIsToldWithItsNumberAndNothingChanges) {
  write_run();
  std::string text = read_file(path_);
  text[text.find("\"step\": 2") + 3] = '"';
  write_file_atomically(path_, text);
  const Error error = caught([&] { rewind_metrics(path_, 2); });
  EXPECT_EQ(error.code(), ErrorCode::kBadFile);
  EXPECT_EQ(error.file(), path_);
  EXPECT_EQ(error.line(), 3);
  EXPECT_EQ(read_file(path_), text);
}

TEST_F(MetricsFile, NoFileIsNoError) {
  rewind_metrics(path_, 5);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(MetricsFile, AFolderThatIsNotThereIsAnErrorWithItsPath) {
  const Error error = caught([] { const RunMetrics metrics("/no/such/folder/metrics.jsonl"); });
  EXPECT_EQ(error.file(), "/no/such/folder/metrics.jsonl");
}

}  // namespace
}  // namespace millrace
