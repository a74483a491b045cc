#include "millrace/runtime/versions.h"

#include <gtest/gtest.h>

#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

// Walks a rank's annotated list as the runtime does: each STEP writes its version's number into the
// weights, each read must find the number of the version it names.
int walk(const ActionList& actions, WeightVersions& versions, bool repeats, int repeat_count) {
  versions.start(actions, actions.front().stage, repeats);
  int64_t base = 0;
  for (int repeat = 0; repeat < repeat_count; ++repeat) {
    for (const Action& action : actions) {
      const int64_t version = action.version + base;
      if (is_compute(action.kind)) {
        const double found = versions.read(version).at(0).at(0).item<double>();
        EXPECT_EQ(found, static_cast<double>(version)) << to_string(action);
      } else if (action.kind == ActionKind::kStep) {
        versions.buffer_for(version).fill_(static_cast<double>(version));
        versions.made(version);
      }
    }
    base += repeats ? 1 : 0;
  }
  return versions.peak_live();
}

TEST(WeightVersions, StashKeepsExactlyWhatIsStillRead) {
  const Model model = testing::prod();
  const Stage stage(model, 0, 1);
  for (int num_stages = 1; num_stages <= 6; ++num_stages) {
    const Schedule schedule = make_schedule("pipedream", {.num_ranks = num_stages});
    const LoweredSchedule lowered = lower(schedule, 24);
    for (int rank = 0; rank < num_stages; ++rank) {
      WeightVersions versions(stage, at::zeros({stage.flat_elements()}, at::kDouble));
      EXPECT_EQ(walk(lowered.ranks[static_cast<std::size_t>(rank)], versions, false, 1),
                num_stages - rank);
      EXPECT_EQ(versions.newest_version(), 24);
      EXPECT_EQ(versions.newest()[0].item<double>(), 24.0);
    }
  }
}

TEST(WeightVersions, FlushWritesInPlace) {
  const Model model = testing::prod();
  const Stage stage(model, 0, 1);
  const LoweredSchedule lowered =
      lower(make_schedule("1f1b", {.num_ranks = 3, .num_microbatches = 5}), 1);
  WeightVersions versions(stage, at::zeros({stage.flat_elements()}, at::kDouble));
  const void* memory = versions.newest().data_ptr();
  EXPECT_EQ(walk(lowered.ranks[0], versions, true, 10), 1);
  EXPECT_EQ(versions.newest().data_ptr(), memory);
  EXPECT_EQ(versions.newest_version(), 10);
}

TEST(WeightVersions, NextSegmentStartsFromTheNewest) {
  const Model model = testing::prod();
  const Stage stage(model, 0, 1);
  const LoweredSchedule lowered = lower(make_schedule("pipedream", {.num_ranks = 3}), 5);
  WeightVersions versions(stage, at::zeros({stage.flat_elements()}, at::kDouble));
  walk(lowered.ranks[0], versions, false, 1);
  versions.start(lowered.ranks[0], 0, false);
  EXPECT_EQ(versions.newest_version(), 0);
  EXPECT_EQ(versions.read(0).at(0).at(0).item<double>(), 5.0);
  EXPECT_THROW(versions.read(4), Error);
}

}  // namespace
}  // namespace millrace
