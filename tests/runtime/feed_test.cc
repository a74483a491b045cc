#include "millrace/runtime/feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/core/run_config.h"
#include "millrace/data/order.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

// Sample ids of every part of a step, in order of parts. The data are x = 1..n, so x - 1 is the id.
std::vector<int64_t> ids(const Feed& feed, int64_t microbatch, int replica) {
  std::vector<int64_t> result;
  if (feed.part_samples(microbatch, replica) > 0) {
    const at::Tensor x = feed.part(microbatch, replica).input;
    for (int64_t i = 0; i < x.size(0); ++i) {
      result.push_back(static_cast<int64_t>(x[i].item<double>()) - 1);
    }
  }
  return result;
}

// Case C14: whatever the number of workers, an epoch is every sample once and each step the same
// set.
TEST(Feed, StepsAreTheSameSetsForAnyNumberOfReplicasAndMicrobatches) {
  const testing::TensorData data = testing::count_to(100);
  const SampleOrder order(100, 8, 3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> all = order.epoch(epoch);
    for (const int replicas : {1, 2, 4}) {
      for (const int microbatches : {1, 2, 3, 8}) {
        const Feed feed(data, all, 8, 0, microbatches, replicas, at::kDouble);
        ASSERT_EQ(feed.num_steps(), 13);
        std::multiset<int64_t> seen;
        for (int64_t step = 0; step < feed.num_steps(); ++step) {
          std::vector<int64_t> found;
          const std::vector<int64_t> sizes =
              split_evenly(feed.step_samples(step), microbatches * replicas);
          for (int m = 0; m < microbatches; ++m) {
            for (int r = 0; r < replicas; ++r) {
              const int64_t microbatch = step * microbatches + m;
              const std::vector<int64_t> part = ids(feed, microbatch, r);
              EXPECT_EQ(static_cast<int64_t>(part.size()),
                        sizes[static_cast<std::size_t>(m * replicas + r)]);
              EXPECT_EQ(static_cast<int64_t>(part.size()), feed.part_samples(microbatch, r));
              found.insert(found.end(), part.begin(), part.end());
            }
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
}

TEST(Feed, StartsInsideAnEpoch) {
  const testing::TensorData data = testing::count_to(13);
  const Feed feed(data, SampleOrder(13, 5, 1).epoch(0), 5, 1, 2, 1, at::kDouble);
  EXPECT_EQ(feed.num_steps(), 2);
  EXPECT_EQ(feed.step_samples(0), 5);
  EXPECT_EQ(feed.step_samples(1), 3);
  EXPECT_EQ(feed.part_samples(0, 0), 3);
  EXPECT_EQ(feed.part_samples(1, 0), 2);
  EXPECT_EQ(feed.part_samples(2, 0), 2);
  EXPECT_EQ(feed.part_samples(3, 0), 1);
}

TEST(Feed, MorePartsThanSamplesLeavesEmptyParts) {
  const testing::TensorData data = testing::count_to(3);
  const Feed feed(data, {0, 1, 2}, 8, 0, 4, 2, at::kDouble);
  int64_t total = 0;
  for (int m = 0; m < 4; ++m) {
    total += feed.part_samples(m, 0) + feed.part_samples(m, 1);
  }
  EXPECT_EQ(total, 3);
  EXPECT_EQ(feed.part_samples(3, 1), 0);
}

}  // namespace
}  // namespace millrace
