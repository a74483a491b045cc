#include "millrace/planner/internal/timed_order.h"

#include <gtest/gtest.h>

#include "millrace/schedule/registry.h"

namespace millrace::internal {
namespace {

// One stage a rank, F of 1 and B of 2 seconds, no bounds.
TimedPipeline straight(int ranks, int microbatches) {
  TimedPipeline pipeline;
  pipeline.num_ranks = ranks;
  pipeline.num_microbatches = microbatches;
  for (int rank = 0; rank < ranks; ++rank) {
    pipeline.rank_of.push_back(rank);
  }
  const auto count = static_cast<std::size_t>(ranks);
  pipeline.seconds.assign(count, {1, 2, 0});
  pipeline.message_s.assign(count, 0);
  pipeline.stash_bytes.assign(count, 1);
  pipeline.stash_limit_bytes.assign(count, 1e9);
  pipeline.update_s.assign(count, 0);
  return pipeline;
}

TEST(TimedOrder, BackwardsFirstUnderItsCapsIsOneFOneB) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const int microbatches : {1, 3, 8}) {
      Preferences preferences{.bias = {0, 1, 0}};
      for (int rank = 0; rank < ranks; ++rank) {
        preferences.caps.push_back(ranks - rank);
      }
      const auto order = order_by(straight(ranks, microbatches), preferences);
      ASSERT_TRUE(order);
      EXPECT_EQ(order->lists, make_schedule("1f1b", {ranks, microbatches}).period);
      EXPECT_EQ(order->seconds, 3 * (microbatches + ranks - 1));
    }
  }
}

TEST(TimedOrder, BytesBoundTheStashAsCapsDo) {
  TimedPipeline pipeline = straight(3, 6);
  for (int rank = 0; rank < 3; ++rank) {
    pipeline.stash_limit_bytes[static_cast<std::size_t>(rank)] = 3 - rank;
  }
  const auto order = order_by(pipeline, {.bias = {0, 1, 0}});
  ASSERT_TRUE(order);
  EXPECT_EQ(order->lists, make_schedule("1f1b", {3, 6}).period);
  pipeline.stash_limit_bytes[1] = 0;
  EXPECT_FALSE(order_by(pipeline, {.bias = {0, 1, 0}}));
}

TEST(TimedOrder, CountsMessagesAndUpdates) {
  TimedPipeline pipeline = straight(2, 1);
  pipeline.message_s = {0.5, 0};
  pipeline.update_s = {0.25, 100};
  EXPECT_EQ(order_by(pipeline, {})->seconds, 1 + 0.5 + 1 + 2 + 100);
  pipeline.update_s = {0.25, 0};
  EXPECT_EQ(order_by(pipeline, {})->seconds, 1 + 0.5 + 1 + 2 + 0.5 + 2 + 0.25);
  pipeline.rank_of = {0, 0};  // on one rank nothing is sent
  EXPECT_EQ(order_by(pipeline, {})->seconds, 6.25);
}

TEST(TimedOrder, SplitBackwardsSendTheirGradientAtOnce) {
  TimedPipeline pipeline = straight(2, 1);
  pipeline.split = true;
  pipeline.seconds = {{1, 1, 1}, {1, 1, 1}};
  const auto order = order_by(pipeline, {});
  ASSERT_TRUE(order);
  EXPECT_EQ(order->seconds, 5);  // 1 + 1 + 1 + 1, and the last W
  EXPECT_EQ(to_string(order->lists[1]), "1F0 1I0 1W0");
}

}  // namespace
}  // namespace millrace::internal
