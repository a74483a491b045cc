#include "millrace/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "millrace/base/error.h"

namespace millrace {
namespace {

constexpr uint64_t kSeed = 3;

// Samples of one step, as a worker that takes every W-th place of the step would see them, joined
// again.
std::set<int64_t> joined(const SampleOrder& order, const std::vector<int64_t>& epoch, int64_t step,
                         int64_t workers) {
  std::set<int64_t> all;
  for (int64_t w = 0; w < workers; ++w) {
    for (int64_t i = w; i < order.step_size(step); i += workers) {
      all.insert(epoch[static_cast<std::size_t>(order.step_begin(step) + i)]);
    }
  }
  return all;
}

TEST(SampleOrder, EveryEpochIsEverySampleOnce) {
  const SampleOrder order(100, 8, kSeed);
  std::vector<int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  std::set<std::vector<int64_t>> different;
  for (int64_t e = 0; e < 3; ++e) {
    std::vector<int64_t> epoch = order.epoch(e);
    EXPECT_EQ(epoch, SampleOrder(100, 8, kSeed).epoch(e)) << "the same on a second run";
    EXPECT_EQ(epoch, SampleOrder(100, 32, kSeed).epoch(e)) << "whatever the batch";
    EXPECT_NE(epoch, expected);
    different.insert(epoch);
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, expected);
  }
  EXPECT_EQ(different.size(), 3U);
  EXPECT_NE(order.epoch(0), SampleOrder(100, 8, kSeed + 1).epoch(0));
}

TEST(SampleOrder, StepsTileTheEpochForAnyNumberOfWorkers) {
  const SampleOrder order(100, 8, kSeed);
  const std::vector<int64_t> epoch = order.epoch(1);
  EXPECT_EQ(order.steps_per_epoch(), 13);
  int64_t position = 0;
  for (int64_t step = 0; step < order.steps_per_epoch(); ++step) {
    EXPECT_EQ(order.step_begin(step), position);
    EXPECT_EQ(order.step_size(step), step < 12 ? 8 : 4);
    position += order.step_size(step);
    const std::set<int64_t> alone = joined(order, epoch, step, 1);
    EXPECT_EQ(alone.size(), static_cast<std::size_t>(order.step_size(step)));
    EXPECT_EQ(joined(order, epoch, step, 2), alone);
    EXPECT_EQ(joined(order, epoch, step, 4), alone);
  }
  EXPECT_EQ(position, 100);
}

TEST(SampleOrder, NothingIsDropped) {
  // 13 samples by 5: 5, 5, 3.
  const SampleOrder order(13, 5, kSeed);
  ASSERT_EQ(order.steps_per_epoch(), 3);
  EXPECT_EQ(order.step_size(0), 5);
  EXPECT_EQ(order.step_size(1), 5);
  EXPECT_EQ(order.step_size(2), 3);
  // A batch above the number of samples is one smaller step; so is the largest batch there is.
  EXPECT_EQ(SampleOrder(3, 10, kSeed).step_size(0), 3);
  EXPECT_EQ(SampleOrder(3, INT64_MAX, kSeed).steps_per_epoch(), 1);
  EXPECT_EQ(SampleOrder(10, 5, kSeed).steps_per_epoch(), 2);
}

TEST(SampleOrder, RefusesNothingness) {
  for (const auto& [samples, batch] :
       {std::pair<int64_t, int64_t>{0, 1}, {1, 0}, {-1, 1}, {1, -3}}) {
    try {
      SampleOrder(samples, batch, kSeed);
      ADD_FAILURE() << samples << " samples, batch " << batch;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_THROW(SampleOrder(10, 5, kSeed).step_size(2), Error);
  EXPECT_THROW(SampleOrder(10, 5, kSeed).step_begin(-1), Error);
}

}  // namespace
}  // namespace millrace
