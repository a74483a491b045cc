#include "millrace/runtime/feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/core/run_config.h"
#include "millrace/data/order.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

// Sample ids of a part. The data are x = 1..n, so x - 1 is the id.
std::vector<int64_t> ids(const Feed& feed, int64_t microbatch) {
  std::vector<int64_t> result;
  if (feed.part_samples(microbatch) > 0) {
    const at::Tensor x = feed.part(microbatch).input;
    for (int64_t i = 0; i < x.size(0); ++i) {
      result.push_back(static_cast<int64_t>(x[i].item<double>()) - 1);
    }
  }
  return result;
}

// Case C14: whatever the number of workers, an epoch is every sample once and each step the same
// set.
TEST(Feed, StepsAreTheSameSetsForAnyNumberOfParts) {
  const testing::TensorData data = testing::count_to(100);
  const SampleOrder order(100, 8, 3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> all = order.epoch(epoch);
    for (const int64_t parts : {1, 2, 3, 4, 6, 8, 32}) {
      const Feed feed(data, all, 8, 0, parts, at::kDouble);
      ASSERT_EQ(feed.num_steps(), 13);
      std::multiset<int64_t> seen;
      for (int64_t step = 0; step < feed.num_steps(); ++step) {
        std::vector<int64_t> found;
        const std::vector<int64_t> sizes = split_evenly(feed.step_samples(step), parts);
        for (int64_t m = 0; m < parts; ++m) {
          const int64_t microbatch = step * parts + m;
          const std::vector<int64_t> part = ids(feed, microbatch);
          EXPECT_EQ(static_cast<int64_t>(part.size()), sizes[static_cast<std::size_t>(m)]);
          EXPECT_EQ(static_cast<int64_t>(part.size()), feed.part_samples(microbatch));
          found.insert(found.end(), part.begin(), part.end());
        }
        const std::vector<int64_t> expected(
            all.begin() + order.step_begin(step),
            all.begin() + order.step_begin(step) + order.step_size(step));
        EXPECT_EQ(found, expected) << "parts joined in order are the step";
        seen.insert(found.begin(), found.end());
      }
      EXPECT_EQ(seen.size(), 100U);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 100U);
    }
  }
}

TEST(Feed, StartsInsideAnEpoch) {
  const testing::TensorData data = testing::count_to(13);
  const Feed feed(data, SampleOrder(13, 5, 1).epoch(0), 5, 1, 2, at::kDouble);
  EXPECT_EQ(feed.num_steps(), 2);
  EXPECT_EQ(feed.step_samples(0), 5);
  EXPECT_EQ(feed.step_samples(1), 3);
  EXPECT_EQ(feed.part_samples(0), 3);
  EXPECT_EQ(feed.part_samples(1), 2);
  EXPECT_EQ(feed.part_samples(2), 2);
  EXPECT_EQ(feed.part_samples(3), 1);
  // Places count within the step's minibatch.
  EXPECT_EQ(feed.first_place(0), 0);
  EXPECT_EQ(feed.first_place(1), 3);
  EXPECT_EQ(feed.first_place(2), 0);
  EXPECT_EQ(feed.first_place(3), 2);
}

TEST(Feed, MorePartsThanSamplesLeavesEmptyParts) {
  const testing::TensorData data = testing::count_to(3);
  const Feed feed(data, {0, 1, 2}, 8, 0, 8, at::kDouble);
  int64_t total = 0;
  for (int m = 0; m < 8; ++m) {
    total += feed.part_samples(m);
  }
  EXPECT_EQ(total, 3);
  EXPECT_EQ(feed.part_samples(7), 0);
}

}  // namespace
}  // namespace millrace
