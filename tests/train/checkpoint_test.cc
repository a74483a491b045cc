#include "millrace/train/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>

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

TEST_F(CheckpointOnDisk, KeepsTheNewestAndClearsWhatAKillLeft) {
  fs::create_directories(dir_ + "/.step-00000001.777");
  fs::create_directories(dir_ + "/.step-00000002.old");
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      all.insert(entry.path().filename().string());
    }
    return all;
  };
  using Names = std::set<std::string>;
  const auto age = [&](const char* name, int seconds) {
    fs::last_write_time(dir_ + "/" + name,
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  };
  save_checkpoint(dir_, manifest(10), tensors(), 2);
  EXPECT_EQ(names(), (Names{"latest", "step-00000010"}));
  save_checkpoint(dir_, manifest(20), tensors(), 2);
  age("step-00000010", 60);
  age("step-00000020", 50);
  // Gone on from step 10: step 20 is older than what is saved now, whatever its number.
  save_checkpoint(dir_, manifest(11), tensors(), 2);
  age("step-00000011", 40);
  EXPECT_EQ(names(), (Names{"latest", "step-00000011", "step-00000020"}));
  save_checkpoint(dir_, manifest(12), tensors(), 2);
  EXPECT_EQ(names(), (Names{"latest", "step-00000011", "step-00000012"}));
  save_checkpoint(dir_, manifest(13), tensors(), 1);
  EXPECT_EQ(names(), (Names{"latest", "step-00000013"}));
  save_checkpoint(dir_, manifest(14), tensors(), 0);
  EXPECT_EQ(names(), (Names{"latest", "step-00000013", "step-00000014"})) << "0 keeps all";
}

TEST_F(CheckpointOnDisk, MissingExtraAndMisshapenTensorsAreAllListedAndNothingIsLoaded) {
  const Model model = testing::mlp4();
  TrainConfig config;
  config.batch = 4;
  Session session({.model = &model,
                   .plan = testing::plan_of(model, {3, 4}, 1, "1f1b"),
                   .policy = "",
                   .train = config});
  std::vector<NamedTensor> state;
  for (const NamedTensor& tensor : session.state()) {
    state.push_back({tensor.name, tensor.layer, tensor.tensor.clone().add_(1)});
  }
  const at::Tensor before = session.state()[1].tensor.clone();
  state[0].tensor = state[0].tensor.slice(0, 1).clone();
  state[2].name = "stranger.weight";
  save_checkpoint(dir_, manifest(1), state);
  try {
    load_into(read_checkpoint(resolve_checkpoint(dir_)), session);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("lacks [linear2.weight]"), std::string::npos) << what;
    EXPECT_NE(what.find("besides [stranger.weight]"), std::string::npos) << what;
    EXPECT_NE(what.find("another shape or dtype [linear1.weight]"), std::string::npos) << what;
  }
  EXPECT_TRUE(at::equal(session.state()[1].tensor, before));
}

// C11: saved at 2 stages x 2 replicas, gone on with at any other layout of the same batch.
TEST_F(CheckpointOnDisk, AnyStagesAndReplicasGoOnFromATwoByTwoCheckpoint) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(160);
  const SampleOrder order(160, 8, 1);
  for (const std::string optimizer : {"sgd", "adam"}) {
    TrainConfig config;
    config.batch = 8;
    config.lr = 0.05;
    config.dtype = "float64";
    config.optimizer = optimizer;
    if (optimizer == "sgd") {
      config.momentum = 0.9;
    }
    const auto session_of = [&](const std::vector<int>& stages, int replicas) {
      return Session({.model = &model,
                      .plan = testing::plan_of(model, stages, replicas, "1f1b", 2),
                      .policy = "",
                      .train = config});
    };
    Session whole = session_of({3, 4}, 2);
    whole.train(data, order, 0, 0, 20, {});
    const std::vector<NamedTensor> expected = whole.state();
    Session first = session_of({3, 4}, 2);
    first.train(data, order, 0, 0, 10, {});
    save_checkpoint(dir_, manifest(10), first.state());
    const LoadedCheckpoint checkpoint = read_checkpoint(resolve_checkpoint(dir_));
    for (const auto& [stages, replicas] :
         {std::pair(std::vector<int>{7}, 1), std::pair(std::vector<int>{2, 2, 2, 1}, 1),
          std::pair(std::vector<int>{7}, 4), std::pair(std::vector<int>{3, 4}, 1),
          std::pair(std::vector<int>{1, 6}, 2)}) {
      Session second = session_of(stages, replicas);
      load_into(checkpoint, second);
      second.train(data, order, 0, 10, 10, {});
      const std::vector<NamedTensor> own = second.state();
      ASSERT_EQ(own.size(), expected.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        ASSERT_EQ(own[i].name, expected[i].name) << "names do not depend on the layout";
        // Sums of equal parts in another order; DESIGN's bound for float64.
        EXPECT_LE(testing::relative_difference(own[i].tensor, expected[i].tensor), 1e-9)
            << optimizer << " " << own[i].name << " at " << stages.size() << " x " << replicas;
      }
    }
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
