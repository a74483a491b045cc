#include "millrace/train/resume.h"

#include <gtest/gtest.h>

#include "millrace/runtime/optimizer.h"
#include "millrace/train/session.h"
#include "tests/base/caught.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

class Resume : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.model = testing::mlp4();
    job_.data.train = std::make_unique<testing::TensorData>(testing::mlp4_data(40));
    job_.config.train.batch = 8;
    job_.config.train.seed = 5;
    job_.config.train.dtype = "float64";
    job_.config.train.momentum = 0.9;
  }

  // What this job itself saves after `step` updates.
  CheckpointManifest saved(int64_t step) const {
    const TrainConfig& config = job_.config.train;
    Session session({.model = &job_.model,
                     .plan = testing::plan_of(job_.model, {3, 4}, 2, "1f1b"),
                     .policy = "",
                     .train = config});
    CheckpointManifest manifest;
    manifest.model = job_.model.name;
    manifest.step = step;
    manifest.epoch = step / 5;
    manifest.step_in_epoch = step % 5;
    manifest.batch = config.batch;
    manifest.samples = job_.data.train->size();
    manifest.seed = config.seed;
    manifest.optimizer = config.optimizer;
    for (const NamedTensor& tensor : session.state()) {
      manifest.tensors.push_back(
          {tensor.name, tensor.layer, "float64", tensor.tensor.sizes().vec(), 0});
    }
    return manifest;
  }

  std::string refusal(const CheckpointManifest& manifest) const {
    const Error error = caught([&] { check_resume(manifest, job_, "runs/x"); });
    EXPECT_EQ(error.file(), "runs/x");
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.message();
  }

  Job job_;
};

TEST_F(Resume, WhatAJobSavedItTakesBackWithEveryOptimizer) {
  check_resume(saved(0), job_, "");
  check_resume(saved(12), job_, "");
  job_.config.train.momentum.reset();
  for (const OptimizerEntry& entry : optimizers()) {
    job_.config.train.optimizer = entry.name;
    check_resume(saved(12), job_, "");
  }
}

// What may change between two parts of a run.
TEST_F(Resume, LayoutRateAndLengthMayDiffer) {
  const CheckpointManifest manifest = saved(12);
  job_.config.train.lr = 0.5;
  job_.config.train.lr_schedule = "cosine";
  job_.config.train.epochs = 77;
  job_.config.train.momentum = 0.5;
  job_.config.parallel.workers = 4;
  job_.config.parallel.microbatches = 2;
  job_.config.parallel.schedule = "gpipe";
  check_resume(manifest, job_, "");
}

TEST_F(Resume, EveryDifferenceIsListed) {
  CheckpointManifest manifest = saved(12);
  manifest.model = "other";
  manifest.batch = 4;
  manifest.seed = 6;
  manifest.samples = 20;
  manifest.optimizer = "adam";
  manifest.tensors[0].shape = {16, 9};
  manifest.tensors[1].dtype = "float32";
  manifest.tensors[2].name = "stranger";
  const std::string message = refusal(manifest);
  for (const char* part :
       {"model = other, this run has mlp4", "batch = 4, this run has 8", "seed = 6, this run has 5",
        "training samples = 20, this run has 40", "optimizer = adam, this run has sgd",
        "linear1.weight = float64 [16, 9], this run has float64 [16, 8]",
        "linear1.weight/velocity = float32 [16, 8], this run has float64 [16, 8]",
        "linear1.bias = nothing, this run has float64 [16]",
        "stranger = float64 [16], this run has nothing"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST_F(Resume, MomentumSwitchedOnOrOffIsADifference) {
  const CheckpointManifest with = saved(12);
  job_.config.train.momentum = 0;
  EXPECT_NE(refusal(with).find("/velocity = float64"), std::string::npos);
  const CheckpointManifest without = saved(12);
  job_.config.train.momentum = 0.9;
  EXPECT_NE(refusal(without).find("/velocity = nothing"), std::string::npos);
}

TEST_F(Resume, ALongListOfDifferencesIsCut) {
  CheckpointManifest manifest = saved(12);
  for (TensorEntry& tensor : manifest.tensors) {
    tensor.name += "x";
  }
  EXPECT_NE(refusal(manifest).find("and 20 more"), std::string::npos) << refusal(manifest);
}

TEST_F(Resume, APositionThatCannotBeIsADamagedFile) {
  for (const auto& [epoch, step_in_epoch] : {std::pair(1, 2), std::pair(2, 3), std::pair(0, 12)}) {
    CheckpointManifest manifest = saved(12);
    manifest.epoch = epoch;
    manifest.step_in_epoch = step_in_epoch;
    const Error error = caught([&] { check_resume(manifest, job_, "runs/x"); });
    EXPECT_EQ(error.code(), ErrorCode::kBadFile) << error.what();
  }
}

}  // namespace
}  // namespace millrace
