// Processes that are killed while they save: `latest` always loads and is whole.
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/random.h"
#include "millrace/train/checkpoint.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kKept = 3;

// Saves steps without end, every element of every tensor the step's number; killed from outside.
[[noreturn]] void save_without_end(const std::string& dir, int64_t step,
                                   std::vector<NamedTensor>& tensors) {
  try {
    while (true) {
      ++step;
      for (NamedTensor& tensor : tensors) {
        std::fill_n(tensor.tensor.data_ptr<float>(), tensor.tensor.numel(),
                    static_cast<float>(step));
      }
      CheckpointManifest manifest;
      manifest.model = "m";
      manifest.step = step;
      manifest.batch = 1;
      manifest.optimizer = "sgd";
      save_checkpoint(dir, manifest, tensors, kKept);
    }
  } catch (const std::exception&) {
    ::_exit(1);  // seen by the parent, which expects a kill
  }
}

std::string path_of(const std::string& dir, int64_t step) {
  return fmt::format("{}/step-{:08d}", dir, step);
}

int count_checkpoints(const std::string& dir) {
  return static_cast<int>(std::count_if(
      fs::directory_iterator(dir), fs::directory_iterator(),
      [](const auto& entry) { return entry.path().filename().string().rfind("step-", 0) == 0; }));
}

TEST(KillDuringSave, LatestLoadsAfterEachOf50Kills) {
  const std::string dir =
      (fs::temp_directory_path() / ("millrace-kill-" + std::to_string(::getpid()))).string();
  fs::remove_all(dir);
  std::vector<NamedTensor> tensors = {{"a.weight", "a", at::full({300, 100}, 0.0, at::kFloat)},
                                      {"b.weight", "b", at::full({70000}, 0.0, at::kFloat)}};
  const RandomKey delays = RandomKey(39).with("kill delays");
  int64_t reached = 0;
  double save_s = 0;
  for (uint64_t kill = 0; kill < 50; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      save_without_end(dir, reached, tensors);
    }
    // Once this child has saved, the kill comes at any moment of the saves that follow.
    const double start_s = monotonic_s();
    const std::string before = reached == 0 ? "" : path_of(dir, reached);
    while (!fs::exists(dir + "/latest") || resolve_checkpoint(dir) == before) {
      std::this_thread::yield();
    }
    save_s = std::max(save_s, monotonic_s() - start_s);
    // Two of three at once, so that several in a row come before the oldest checkpoint went.
    const double delay_s = kill % 3 == 0 ? 2 * save_s * delays.uniform(kill) : 0.0;
    if (delay_s > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "kill " << kill << ": a save failed";
    const LoadedCheckpoint loaded = read_checkpoint(resolve_checkpoint(dir));
    EXPECT_GT(loaded.manifest.step, reached) << "kill " << kill << " after " << delay_s << " s";
    reached = loaded.manifest.step;
    ASSERT_EQ(loaded.tensors.size(), 2U);
    for (const NamedTensor& tensor : loaded.tensors) {
      EXPECT_EQ(tensor.tensor.min().item<double>(), static_cast<double>(reached)) << tensor.name;
      EXPECT_EQ(tensor.tensor.max().item<double>(), static_cast<double>(reached)) << tensor.name;
    }
    // One more than are kept when the kill came before the oldest went.
    EXPECT_LE(count_checkpoints(dir), kKept + 1);
  }
  fs::remove_all(dir);
}

}  // namespace
}  // namespace millrace
