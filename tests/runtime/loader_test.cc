#include "millrace/runtime/loader.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "millrace/data/order.h"
#include "tests/base/caught.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Samples 1, 2, ..., of which it may refuse one, and which it may keep back.
class Watched final : public Dataset {
 public:
  explicit Watched(int64_t n) : data_(testing::count_to(n)) {}
  int64_t size() const override { return data_.size(); }
  TensorSpec input() const override { return data_.input(); }
  TensorSpec target() const override { return data_.target(); }
  int64_t num_classes() const override { return 0; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (num_begun_ == 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(first_s));
      }
      if (slow) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ++num_begun_;
      ++on_thread_[std::this_thread::get_id()];
      changed_.notify_all();
      changed_.wait(lock, [this] { return num_begun_ <= num_allowed_; });
    }
    for (int64_t i = 0; i < count; ++i) {
      if (indices[i] == refused) {
        throw std::runtime_error("the disk is gone");
      }
    }
    return data_.get(indices, count, dtype);
  }

  // Keeps back all but so many of the loads.
  void allow(int number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_allowed_ = number;
    changed_.notify_all();
  }
  void wait_begun(int number) const {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return num_begun_ >= number; });
  }
  int num_begun() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_begun_;
  }

  std::size_t num_threads() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return on_thread_.size();
  }
  int num_here() const {  // by the thread that asks
    const std::lock_guard<std::mutex> lock(mutex_);
    return on_thread_[std::this_thread::get_id()];
  }

  int64_t refused = -1;
  double first_s = 0;  // that the first load takes
  bool slow = false;   // takes a millisecond each time

 private:
  testing::TensorData data_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int num_begun_ = 0;
  mutable std::map<std::thread::id, int> on_thread_;
  int num_allowed_ = 1 << 30;
};

std::vector<int64_t> in_order(int64_t n) {
  std::vector<int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// What makes a part worth a thread.
constexpr double kAlways = 0;
constexpr double kNever = 1e9;

// Parts of two samples each, three a step.
Feed feed_of(const Watched& data) { return {data, in_order(data.size()), 6, 0, 3, at::kDouble}; }

TEST(Loader, HandsOverWhatTheFeedHoldsInTheOrderAskedFor) {
  const Watched data(29);
  const Feed feed(data, SampleOrder(29, 8, 5).epoch(0), 8, 0, 4, at::kDouble);
  for (const int depth : {1, 2, 5}) {
    Loader loader(feed, {{3, 0, 2, 1, 0}, 4, feed.num_steps()}, {}, depth, kAlways);
    for (int64_t step = 0; step < feed.num_steps(); ++step) {
      for (const int64_t listed : {3, 0, 2, 1, 0}) {
        const int64_t m = step * 4 + listed;
        ASSERT_GT(feed.part_samples(m), 0);
        const Batch batch = loader.take(m);
        EXPECT_TRUE(at::equal(batch.input, feed.part(m).input)) << "part " << m;
        EXPECT_TRUE(at::equal(batch.target, feed.part(m).target)) << "part " << m;
      }
    }
  }
}

TEST(Loader, LeavesOutEmptyParts) {
  const Watched data(3);
  const Feed feed(data, in_order(3), 8, 0, 8, at::kDouble);
  Loader loader(feed, {{7, 0, 5, 1, 2, 6}, 8, 1}, {}, Loader::kDepth, kAlways);
  for (const int64_t m : {0, 1, 2}) {
    EXPECT_EQ(loader.take(m).input.item<double>(), static_cast<double>(m + 1));
  }
  EXPECT_EQ(data.num_begun(), 3);
}

TEST(Loader, RefusesAnOrderOtherThanTheOneTold) {
  const Watched data(12);
  const Feed feed = feed_of(data);
  const LoadOrder order = {{0, 1, 2}, 3, 1};
  for (const double worth_s : {kAlways, kNever}) {
    Loader loader(feed, order, {}, Loader::kDepth, worth_s);
    loader.take(0);
    EXPECT_EQ(caught([&] { loader.take(2); }).code(), ErrorCode::kInternal);
    Loader longer(feed, order, {}, Loader::kDepth, worth_s);
    for (const int64_t m : {0, 1, 2}) {
      longer.take(m);
    }
    EXPECT_EQ(caught([&] { longer.take(3); }).code(), ErrorCode::kInternal)
        << "more than it was told of";
  }
}

// However much time there is: the order here has no end.
TEST(Loader, IsNoFurtherAheadThanItsDepth) {
  for (const int depth : {1, 2, 4}) {
    Watched data(12);
    data.slow = true;
    const Feed feed = feed_of(data);
    {
      Loader loader(feed, {{0}, 0, 1 << 20}, {}, depth);
      for (int taken = 0; taken < 3; ++taken) {
        loader.take(0);
      }
      data.wait_begun(depth + 3);
    }
    EXPECT_EQ(data.num_begun(), depth + 3);
  }
}

TEST(Loader, IsAThreadOnlyWhereAPartIsWorthIt) {
  for (const double worth_s : {kAlways, kNever}) {
    const Watched data(12);
    const Feed feed = feed_of(data);
    Loader loader(feed, {{0, 1, 2}, 3, 2}, {}, Loader::kDepth, worth_s);
    for (int64_t m = 0; m < 6; ++m) {
      loader.take(m);
    }
    EXPECT_EQ(data.num_threads(), worth_s == kAlways ? 2U : 1U) << "the rank loads the first one";
  }
}

// The first part is held up by chance.
TEST(Loader, GoesBackToTheRankAfterManyFastParts) {
  Watched data(12);
  data.first_s = 0.05;
  const Feed feed = feed_of(data);
  Loader loader(feed, {{0, 1, 2}, 0, 200}, {}, Loader::kDepth, data.first_s);
  for (int64_t i = 0; i < 600; ++i) {
    const Batch batch = loader.take(i % 3);
    ASSERT_EQ(batch.input[0].item<double>(), static_cast<double>(2 * (i % 3) + 1));
  }
  EXPECT_EQ(data.num_threads(), 2U);
  EXPECT_GT(data.num_here(), 1) << "the rank loads again";
  EXPECT_GE(data.num_begun() - data.num_here(), 64) << "by the thread";
}

TEST(Loader, CountsTheWaitOfARankThatIsFaster) {
  Watched data(12);
  data.allow(1);
  const Feed feed = feed_of(data);
  // Asked only while the rank waits.
  Loader loader(
      feed, {{0, 1, 2}, 3, 2},
      [&] {
        data.allow(6);
        return false;
      },
      Loader::kDepth, kAlways);
  loader.take(0);
  EXPECT_GT(loader.take_wait_s(), 0.0) << "it loaded this itself";
  loader.take(1);
  EXPECT_GT(loader.take_wait_s(), 0.0);
  EXPECT_EQ(loader.take_wait_s(), 0.0) << "asked twice";
}

TEST(Loader, TellsOfAFailureWhereItIsAndNamesTheSample) {
  for (const double worth_s : {kAlways, kNever}) {
    Watched data(12);
    data.refused = 5;
    const Feed feed = feed_of(data);
    Loader loader(feed, {{0, 1, 2}, 3, 2}, {}, Loader::kDepth, worth_s);
    loader.take(0);
    loader.take(1);
    EXPECT_THAT(caught([&] { loader.take(2); }).what(),
                AllOf(HasSubstr("sample 5 "), HasSubstr("the disk is gone")));
  }
}

TEST(Loader, EndsTheWaitOfARankWhenTheRunIsBroken) {
  Watched data(12);
  data.allow(1);
  const Feed feed = feed_of(data);
  std::atomic<int> asked{0};
  Loader loader(
      feed, {{0, 1, 2}, 3, 2}, [&] { return ++asked > 1; }, Loader::kDepth, kAlways);
  loader.take(0);
  EXPECT_EQ(caught([&] { loader.take(1); }).code(), ErrorCode::kPeerLost);
  data.allow(6);  // a load under way is let end
}

TEST(Loader, LeavesAtAnyTime) {
  Watched data(12);
  const Feed feed = feed_of(data);
  for (const int64_t refused : {-1, 5, 2}) {
    data.refused = refused;
    for (int num_taken = 0; num_taken <= 6; ++num_taken) {
      Loader loader(feed, {{0, 1, 2}, 3, 2}, {}, Loader::kDepth, kAlways);
      for (int64_t m = 0; m < num_taken && (refused < 0 || m < refused / 2); ++m) {
        loader.take(m);
      }
    }
  }
}

TEST(LoadOrder, FollowsTheForwardsAndWhereToldTheBackwards) {
  LoweredSchedule lowered;
  lowered.microbatches_per_step = 4;
  lowered.num_stages = 2;
  lowered.ranks = {
      {Action::range(ActionKind::kForward, 0, 0, 1), Action::of(ActionKind::kForward, 1, 0),
       Action::of(ActionKind::kForward, 0, 3), Action::of(ActionKind::kInputGradient, 0, 1),
       Action::of(ActionKind::kBackward, 1, 0), Action::of(ActionKind::kBackward, 0, 0),
       Action::of(ActionKind::kWeightGradient, 0, 1)}};
  EXPECT_EQ(load_order(lowered, 0, 5, {true, false}, false).list, (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(load_order(lowered, 0, 5, {true, true}, false).list,
            (std::vector<int64_t>{0, 1, 0, 3}));
  const LoadOrder again = load_order(lowered, 0, 5, {true, false}, true);
  EXPECT_EQ(again.list, (std::vector<int64_t>{0, 1, 3, 1, 0}));
  EXPECT_EQ(again.stride, 4);
  EXPECT_EQ(again.repeats, 5);
}

// A list that runs once holds every step; a shorter segment ends before the others.
TEST(LoadOrder, EndsWithTheSegment) {
  LoweredSchedule lowered;
  lowered.flush = false;
  lowered.microbatches_per_step = 2;
  for (const int64_t m : {0, 1, 2, 3, 4, 5}) {
    lowered.ranks.resize(1);
    lowered.ranks[0].push_back(Action::of(ActionKind::kForward, 0, m));
  }
  const LoadOrder order = load_order(lowered, 0, 2, {true}, false);
  EXPECT_EQ(order.list, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(order.repeats, 1);
}

}  // namespace
}  // namespace millrace
