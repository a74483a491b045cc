#include "millrace/train/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/train/safetensors.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class CheckpointOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = (fs::temp_directory_path() / ("millrace-checkpoint-" + std::to_string(::getpid())))
               .string();
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::vector<NamedTensor> tensors() {
    return {{"conv1.weight", "conv1", at::randn({3, 1, 5, 5}, at::kFloat)},
            {"conv1.bias", "conv1", at::randn({3}, at::kFloat)},
            {"fc.weight", "fc", at::randn({4, 7}, at::kDouble)},
            {"empty.weight", "empty", at::randn({0, 2}, at::kFloat)}};
  }
  static CheckpointManifest manifest(int64_t step) {
    CheckpointManifest manifest;
    manifest.model = "lenet";
    manifest.step = step;
    manifest.batch = 8;
    manifest.samples = 100;
    manifest.optimizer = "sgd";
    return manifest;
  }

  std::string dir_;
};

TEST_F(CheckpointOnDisk, RoundTripKeepsEveryBit) {
  const std::vector<NamedTensor> saved = tensors();
  const std::string path = save_checkpoint(dir_, manifest(7), saved);
  EXPECT_EQ(resolve_checkpoint(dir_), path);
  const LoadedCheckpoint loaded = read_checkpoint(path);
  EXPECT_EQ(loaded.manifest.step, 7);
  ASSERT_EQ(loaded.tensors.size(), saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(loaded.tensors[i].name, saved[i].name);
    EXPECT_EQ(loaded.tensors[i].layer, saved[i].layer);
    EXPECT_TRUE(at::equal(loaded.tensors[i].tensor, saved[i].tensor));
  }
}

TEST_F(CheckpointOnDisk, LatestFollowsTheNewestAndASecondSaveOfAStepReplacesIt) {
  save_checkpoint(dir_, manifest(7), tensors());
  const std::string second = save_checkpoint(dir_, manifest(9), tensors());
  EXPECT_EQ(resolve_checkpoint(dir_), second);
  const std::vector<NamedTensor> newer = tensors();
  save_checkpoint(dir_, manifest(9), newer);
  EXPECT_TRUE(at::equal(read_checkpoint(second).tensors[0].tensor, newer[0].tensor));
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_NE(entry.path().filename().string()[0], '.')
        << "nothing half-written stays: " << entry.path();
    ++entries;
  }
  EXPECT_EQ(entries, 3) << "two checkpoints and latest";
}

TEST_F(CheckpointOnDisk, AnyFlippedByteOfThePayloadIsANamedError) {
  const std::string path = save_checkpoint(dir_, manifest(7), tensors());
  const std::string file = path + "/tensors.safetensors";
  const std::string good = read_file(file);
  for (std::size_t at = 0; at < good.size(); at += 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_file_atomically(file, bad);
    try {
      read_checkpoint(path);
      FAIL() << "byte " << at << " of " << good.size() << " was flipped unnoticed";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kBadFile ||
                  error.code() == ErrorCode::kInvalidArgument)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("tensors.safetensors"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(CheckpointOnDisk, AnyTruncationIsAnError) {
  const std::string path = save_checkpoint(dir_, manifest(7), tensors());
  const std::string file = path + "/tensors.safetensors";
  const std::string good = read_file(file);
  for (std::size_t size = 0; size < good.size(); size += 61) {
    write_file_atomically(file, good.substr(0, size));
    EXPECT_THROW(read_checkpoint(path), Error) << size;
  }
  write_file_atomically(file, good + "x");
  EXPECT_THROW(read_checkpoint(path), Error);
  fs::remove(file);
  EXPECT_THROW(read_checkpoint(path), Error);
}

TEST_F(CheckpointOnDisk, WhatDoesNotFitTheModelIsListed) {
  const Model model = testing::mlp4();
  TrainConfig config;
  config.batch = 4;
  Session session({.model = &model,
                   .plan = testing::plan_of(model, {3, 4}, 1, "1f1b"),
                   .policy = "",
                   .train = config});
  std::vector<NamedTensor> state = session.state();
  state.pop_back();
  save_checkpoint(dir_, manifest(1), state);
  try {
    load_into(read_checkpoint(resolve_checkpoint(dir_)), session);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("linear4.bias"), std::string::npos) << error.what();
  }
}

// C36, C38 at one layout, and C11's key rule: names, not positions, so another cut loads too.
TEST_F(CheckpointOnDisk, ResumedStepsEqualUninterruptedOnes) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(80);
  TrainConfig config;
  config.batch = 4;
  config.lr = 0.05;
  config.momentum = 0.9;
  config.dtype = "float64";
  const SampleOrder order(80, 4, 1);
  for (const std::string schedule : {"1f1b", "pipedream"}) {
    const Plan plan = testing::plan_of(model, {3, 4}, 1, schedule);
    Session whole({.model = &model, .plan = plan, .policy = "", .train = config});
    Session first({.model = &model, .plan = plan, .policy = "", .train = config});
    // Drained at step 10 on both sides.
    whole.train(data, order, 0, 0, 10, {});
    whole.train(data, order, 0, 10, 10, {});
    first.train(data, order, 0, 0, 10, {});
    save_checkpoint(dir_, manifest(10), first.state());
    for (const std::vector<int>& stages : {std::vector<int>{3, 4}, {7}, {2, 2, 3}}) {
      if (schedule == "pipedream" && stages.size() != 2) {
        continue;  // another depth has another staleness: not the same training
      }
      Session second({.model = &model,
                      .plan = testing::plan_of(model, stages, 1, schedule),
                      .policy = "",
                      .train = config});
      load_into(read_checkpoint(resolve_checkpoint(dir_)), second);
      second.train(data, order, 0, 10, 10, {});
      const std::vector<NamedTensor> a = whole.state();
      const std::vector<NamedTensor> b = second.state();
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << schedule << " " << a[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
