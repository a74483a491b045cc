// Whole runs through the trainer: what a stop and a resume leave unchanged (cases C36, C38).
#include "millrace/train/trainer.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "millrace/core/lr_schedule.h"
#include "millrace/train/checkpoint.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Writes down which samples are asked for.
class LoggedData final : public Dataset {
 public:
  LoggedData(testing::TensorData data, std::vector<int64_t>& log)
      : data_(std::move(data)), log_(log) {}
  int64_t size() const override { return data_.size(); }
  TensorSpec input() const override { return data_.input(); }
  TensorSpec target() const override { return data_.target(); }
  int64_t num_classes() const override { return 0; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      log_.insert(log_.end(), indices, indices + count);
    }
    return data_.get(indices, count, dtype);
  }

 private:
  testing::TensorData data_;
  std::vector<int64_t>& log_;
  mutable std::mutex mutex_;
};

// What a run told.
struct Told final : public EventSink {
  void on_step(const StepEvent& event) override { steps.push_back(event); }
  void on_checkpoint(const CheckpointEvent& event) override { checkpoint = event.path; }
  std::vector<double> rates() const {
    std::vector<double> all;
    for (const StepEvent& event : steps) {
      all.push_back(event.lr);
    }
    return all;
  }
  std::vector<StepEvent> steps;
  std::string checkpoint;
  std::vector<Trace> first_steps;
};

class TrainerRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        (fs::temp_directory_path() / ("millrace-trainer-" + std::to_string(::getpid()))).string();
    fs::remove_all(dir_);
    config_.batch = 8;
    config_.lr = 0.05;
    config_.dtype = "float64";
    config_.eval_every_epochs = 0;
  }
  void TearDown() override { fs::remove_all(dir_); }

  struct Layout {
    std::vector<int> stages = {7};
    int replicas = 1;
    std::string schedule = "1f1b";
  };

  // Runs config_ on `samples` samples; the ids that were read go to ids_.
  TrainResult run(const Layout& layout, const std::string& run_dir, int64_t samples, Told& told,
                  const std::string& resume = "", int64_t stop_at = 0) {
    ids_.clear();
    Job job;
    job.config.train = config_;
    job.model = testing::mlp4();
    job.data.train = std::make_unique<LoggedData>(testing::mlp4_data(samples), ids_);
    job.data.test = std::make_unique<testing::TensorData>(testing::mlp4_data(4));
    job.plan = testing::plan_of(job.model, layout.stages, layout.replicas, layout.schedule);
    TrainOptions options;
    options.run_dir = dir_ + "/" + run_dir;
    options.sink = &told;
    options.on_first_steps = [&told](const Trace& measured) {
      told.first_steps.push_back(measured);
    };
    if (!resume.empty()) {
      options.resume = dir_ + "/" + resume;
    }
    if (stop_at > 0) {
      options.stop_requested = [&told, stop_at] {
        return static_cast<int64_t>(told.steps.size()) >= stop_at;
      };
    }
    fs::create_directories(options.run_dir);
    return train(job, options);
  }

  std::vector<NamedTensor> saved(const std::string& run_dir) const {
    return read_checkpoint(resolve_checkpoint(dir_ + "/" + run_dir)).tensors;
  }

  TrainConfig config_;
  std::string dir_;
  std::vector<int64_t> ids_;
};

// 100 samples in steps of 8: thirteen an epoch, the last of four.
int64_t samples_of(int64_t steps) { return steps / 13 * 100 + steps % 13 * 8; }

// C36: 100 samples in steps of 8; stopped in the second epoch, by a step limit and by a request.
TEST_F(TrainerRuns, JoinedSampleIdsEqualAnUninterruptedRuns) {
  config_.epochs = 3;
  Told whole;
  run({}, "whole", 100, whole);
  const std::vector<int64_t> expected = ids_;
  ASSERT_EQ(expected.size(), 300U);
  ASSERT_FALSE(std::equal(expected.begin(), expected.begin() + 100, expected.begin() + 100))
      << "each epoch has its own order";

  for (const bool by_request : {false, true}) {
    const std::string name = by_request ? "requested" : "limited";
    if (!by_request) {
      config_.max_steps = 17;
    }
    Told first;
    const TrainResult stopped = run({}, name, 100, first, "", by_request ? 17 : 0);
    config_.max_steps.reset();
    EXPECT_EQ(stopped.done.interrupted, by_request);
    EXPECT_GE(stopped.done.steps, 17);
    // A run that is asked to stop may have read the next batch already; that one is not trained.
    std::vector<int64_t> joined = ids_;
    const int64_t trained = samples_of(stopped.done.steps);
    ASSERT_GE(static_cast<int64_t>(joined.size()), trained) << name;
    joined.resize(static_cast<size_t>(trained));
    Told second;
    run({}, name, 100, second, name);
    joined.insert(joined.end(), ids_.begin(), ids_.end());
    EXPECT_EQ(joined, expected) << name;
    EXPECT_EQ(second.steps.empty() ? 40 : second.steps.front().step,
              static_cast<int64_t>(first.steps.size()) + 1);
  }
}

// Other workers read the same samples in the same steps.
TEST_F(TrainerRuns, ResumeOnOtherWorkersKeepsTheGlobalOrder) {
  config_.epochs = 2;
  Told whole;
  run({}, "whole", 100, whole);
  const std::vector<int64_t> expected(ids_.begin() + 17 * 8 - 4, ids_.end());
  config_.max_steps = 17;
  Told first;
  run({}, "part", 100, first);
  for (const int replicas : {2, 4}) {
    for (int64_t step = 17; step < 26; ++step) {
      config_.max_steps = step + 1;
      Told next;
      const std::string to = "replicas" + std::to_string(replicas);
      run({{7}, replicas, "1f1b"}, to, 100, next, step == 17 ? "part" : to);
      std::vector<int64_t> own = ids_;
      const auto begin = expected.begin() + (step - 17) * 8;
      std::vector<int64_t> due(begin, begin + static_cast<int64_t>(own.size()));
      std::sort(own.begin(), own.end());
      std::sort(due.begin(), due.end());
      EXPECT_EQ(own, due) << replicas << " replicas, step " << step;
    }
  }
}

// C38: stopped at 5 of 10 during warm-up (the epoch's end: a pipeline without a flush is drained
// there in the uninterrupted run too); lr trace and weights bit-equal.
TEST_F(TrainerRuns, RateAndWeightsAfterAResumeAreBitForBitTheUninterruptedOnes) {
  for (const std::string optimizer : {"sgd", "adam", "adamw"}) {
    for (const LrScheduleEntry& entry : lr_schedules()) {
      for (const std::string schedule : {"1f1b", "pipedream"}) {
        fs::remove_all(dir_);
        config_.optimizer = optimizer;
        config_.momentum.reset();
        if (optimizer == "sgd") {
          config_.momentum = 0.9;
        }
        config_.lr_schedule = entry.name;
        config_.lr_step_epochs.reset();
        if (config_.lr_schedule == "step") {
          config_.lr_step_epochs = 1;
        }
        config_.warmup_steps = 8;
        config_.epochs = 2;
        const Layout layout{{3, 4}, 1, schedule};
        Told whole;
        run(layout, "whole", 40, whole);
        ASSERT_EQ(whole.steps.size(), 10U);
        Told first;
        EXPECT_TRUE(run(layout, "part", 40, first, "", 5).done.interrupted);
        ASSERT_EQ(first.steps.size(), 5U);
        Told second;
        run(layout, "part", 40, second, "part");
        std::vector<double> rates = first.rates();
        const std::vector<double> rest = second.rates();
        rates.insert(rates.end(), rest.begin(), rest.end());
        EXPECT_EQ(rates, whole.rates()) << optimizer << " " << entry.name;
        EXPECT_LT(rates[0], rates[4]) << "warm-up rises";
        const std::vector<NamedTensor> a = saved("whole");
        const std::vector<NamedTensor> b = saved("part");
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          EXPECT_EQ(a[i].name, b[i].name);
          EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor))
              << optimizer << " " << entry.name << " " << schedule << " " << a[i].name;
        }
      }
    }
  }
}

TEST_F(TrainerRuns, TheRateThatIsToldIsTheRateThatIsUsed) {
  config_.lr_schedule = "polynomial";
  config_.warmup_steps = 2;
  config_.epochs = 1;
  for (const std::string schedule : {"1f1b", "pipedream"}) {
    fs::remove_all(dir_);
    Told told;
    run({{3, 4}, 1, schedule}, "run", 80, told);
    const LrSchedule lr(config_, 10);
    ASSERT_EQ(told.steps.size(), 10U);
    for (int64_t step = 0; step < 10; ++step) {
      EXPECT_EQ(told.steps[static_cast<std::size_t>(step)].lr, lr.at(step));
    }
  }
}

TEST_F(TrainerRuns, OnlyTheNewestCheckpointsAreKept) {
  config_.epochs = 6;
  config_.keep_checkpoints = 2;
  Told told;
  run({}, "run", 16, told);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_ + "/run/checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "step-00000010", "step-00000012"}));
}

// Long before the run's end, once, of all ranks; on schedules with and without a flush, through the
// ends of epochs.
TEST_F(TrainerRuns, TellsWhatTheFirstStepsTook) {
  for (const std::string schedule : {"1f1b", "pipedream"}) {
    fs::remove_all(dir_);
    config_.epochs = 60;  // of five steps each
    Told told;
    run({{3, 4}, 1, schedule}, "long", 40, told);
    // When, depends on how far ranks are ahead of those who report them; runtime's tests say of
    // what.
    ASSERT_EQ(told.first_steps.size(), 1U) << schedule;
    const Trace& measured = told.first_steps.front();
    EXPECT_EQ(measured.num_steps, 1);
    EXPECT_GT(measured.step_s, 0);
    ASSERT_EQ(measured.ranks.size(), 2U);
    for (const RankTrace& rank : measured.ranks) {
      EXPECT_EQ(rank.stages, std::vector<int>{rank.rank});
      EXPECT_GT(rank.compute_s, 0);
      EXPECT_LT(rank.compute_s, measured.step_s * 10);
      EXPECT_GT(rank.update_s, 0);
    }
    config_.epochs = 3;
    Told brief;
    run({{3, 4}, 1, schedule}, "brief", 40, brief);
    EXPECT_TRUE(brief.first_steps.empty()) << "15 steps only";
  }
}

}  // namespace
}  // namespace millrace
