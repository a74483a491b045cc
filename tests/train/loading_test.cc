// Loading ahead of training changes nothing but time: the same runs with both ways of loading.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "millrace/data/order.h"
#include "millrace/train/session.h"
#include "tests/base/caught.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::config_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::mlp4;
using testing::mlp4_data;
using testing::plan_of;
using testing::state_of;

// mlp4_data that knows who loads it, may be slow enough to be worth a thread, and may refuse a
// sample.
class Watched final : public Dataset {
 public:
  explicit Watched(int64_t n) : data_(mlp4_data(n)) {}
  int64_t size() const override { return data_.size(); }
  TensorSpec input() const override { return data_.input(); }
  TensorSpec target() const override { return data_.target(); }
  int64_t num_classes() const override { return 0; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++loads_[std::this_thread::get_id()];
    }
    if (slow) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (int64_t i = 0; i < count; ++i) {
      if (indices[i] == refused) {
        throw std::runtime_error("the disk is gone");
      }
    }
    return data_.get(indices, count, dtype);
  }
  std::map<std::thread::id, int> loads() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return loads_;
  }

  int64_t refused = -1;
  bool slow = false;

 private:
  testing::TensorData data_;
  mutable std::mutex mutex_;
  mutable std::map<std::thread::id, int> loads_;
};

TrainConfig config_with(const std::string& loading, int64_t batch) {
  TrainConfig config = config_of(batch);
  config.momentum = 0.9;
  config.loading = loading;
  return config;
}

struct Shape {
  std::string schedule;
  std::vector<int> sizes;
  int replicas;
  int microbatches;
  int64_t batch;
  Recompute recompute = Recompute::kNothing;
};

struct Result {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses;
};

// Two epochs of 23 samples: the last step of each is smaller, down to parts without any.
Result run(const Shape& shape, const std::string& loading) {
  const Model model = mlp4();
  Watched data(23);
  data.slow = true;
  const SampleOrder order(23, shape.batch, 3);
  Plan plan = plan_of(model, shape.sizes, shape.replicas, shape.schedule, shape.microbatches);
  plan.recompute = shape.recompute;
  Session session(
      {.model = &model, .plan = plan, .policy = "", .train = config_with(loading, shape.batch)});
  Result result;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    session.train(
        data, order, epoch, 0, order.steps_per_epoch(),
        {.on_step = [&](int64_t, const LossSums& sums) { result.losses.push_back(sums.loss); }});
  }
  result.state = state_of(session);
  return result;
}

TEST(Loading, BothWaysGiveTheSameBits) {
  const Recompute again = Recompute::kStage;
  for (const Shape& shape : std::vector<Shape>{{"1f1b", {7}, 1, 1, 5},
                                               {"1f1b", {2, 2, 3}, 1, 4, 10},
                                               {"1f1b", {3, 4}, 2, 2, 10},
                                               {"1f1b", {3, 4}, 1, 4, 10, again},
                                               {"gpipe", {2, 2, 3}, 1, 4, 10},
                                               {"gpipe", {3, 4}, 2, 3, 10, again},
                                               {"pipedream", {2, 2, 3}, 1, 1, 4},
                                               {"pipedream", {3, 4}, 2, 1, 4},
                                               {"pipedream", {3, 4}, 1, 1, 4, again},
                                               {"zb-h1", {2, 2, 3}, 1, 4, 10}}) {
    SCOPED_TRACE(::testing::Message()
                 << shape.schedule << " of " << shape.sizes.size() << " stages, replicas "
                 << shape.replicas << ", recompute " << to_string(shape.recompute));
    const Result inline_way = run(shape, "inline");
    const Result parallel = run(shape, "parallel");
    EXPECT_EQ(parallel.losses, inline_way.losses);
    EXPECT_FALSE(parallel.losses.empty());
    ASSERT_EQ(parallel.state.size(), inline_way.state.size());
    for (const auto& [name, tensor] : inline_way.state) {
      EXPECT_TRUE(at::equal(parallel.state.at(name), tensor)) << name;
    }
  }
}

TEST(Loading, ParallelIsAThreadOfItsOwnForEachRankThatTakesData) {
  const Model model = mlp4();
  const SampleOrder order(40, 8, 1);
  for (const std::string loading : {"parallel", "inline"}) {
    Watched data(40);
    data.slow = true;
    std::mutex mutex;
    std::set<std::thread::id> ranks;
    Session session({.model = &model,
                     .plan = plan_of(model, {2, 2, 3}, 1, "1f1b", 2),
                     .policy = "",
                     .train = config_with(loading, 8),
                     .before_action = [&](int, const Action&) {
                       const std::lock_guard<std::mutex> lock(mutex);
                       ranks.insert(std::this_thread::get_id());
                     }});
    session.train(data, order, 0, 0, 5, {});
    ASSERT_EQ(ranks.size(), 3U);
    std::vector<int> by_ranks;
    std::vector<int> by_loaders;
    for (const auto& [thread, loads] : data.loads()) {
      (ranks.contains(thread) ? by_ranks : by_loaders).push_back(loads);
    }
    if (loading == "inline") {
      EXPECT_THAT(by_ranks, ElementsAre(10, 10)) << "the first stage's and the last one's";
      EXPECT_THAT(by_loaders, IsEmpty());
    } else {
      EXPECT_THAT(by_ranks, ElementsAre(1, 1)) << "nobody has anything else to do then";
      EXPECT_THAT(by_loaders, ElementsAre(9, 9));
    }
  }
}

TEST(Loading, AFailureNamesSampleRankAndActionEitherWay) {
  const Model model = mlp4();
  const SampleOrder order(40, 8, 1);
  std::vector<std::string> told;
  for (const std::string loading : {"parallel", "inline"}) {
    Watched data(40);
    data.slow = true;
    data.refused = order.epoch(0)[21];
    Session session({.model = &model,
                     .plan = plan_of(model, {7}, 1, "1f1b", 4),
                     .policy = "",
                     .train = config_with(loading, 8)});
    const Error error = caught([&] { session.train(data, order, 0, 0, 5, {}); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("sample " + std::to_string(data.refused) + " "),
                                    HasSubstr("the disk is gone")));
    EXPECT_EQ(error.rank(), 0);
    ASSERT_TRUE(error.action());
    told.emplace_back(error.what());
  }
  EXPECT_EQ(told[0], told[1]);
}

TEST(Loading, AFailureOfAnotherRankEndsARankThatWaitsForItsSamples) {
  const Model model = mlp4();
  const SampleOrder order(400, 8, 1);
  Watched data(400);
  data.slow = true;
  Session session({.model = &model,
                   .plan = plan_of(model, {2, 2, 3}, 1, "pipedream"),
                   .policy = "",
                   .train = config_with("parallel", 8),
                   .before_action = [](int rank, const Action& action) {
                     if (rank == 1 && action.first == 9) {
                       throw std::runtime_error("the device fell off");
                     }
                   }});
  const Error error = caught([&] { session.train(data, order, 0, 0, 50, {}); });
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.what(), HasSubstr("the device fell off"));
}

// The rest of the epoch goes on where the stop was, with loaders of its own.
TEST(Loading, AStopInTheMiddleDropsWhatWasLoadedAhead) {
  const Model model = mlp4();
  const SampleOrder order(160, 4, 1);
  for (const std::string schedule : {"pipedream", "1f1b"}) {
    const auto setup = [&](const std::string& loading) {
      return SessionSetup{.model = &model,
                          .plan = plan_of(model, {2, 2, 3}, 1, schedule),
                          .policy = "",
                          .train = config_with(loading, 4)};
    };
    Watched data(160);
    data.slow = true;
    Session session(setup("parallel"));
    int64_t reported = 0;
    const int64_t done = session.train(data, order, 0, 0, 40,
                                       {.on_step = [&](int64_t, const LossSums&) { ++reported; },
                                        .stop_requested = [&] { return reported >= 5; }});
    EXPECT_GE(done, 5);
    session.train(data, order, 0, done, 40 - done, {});
    Session reference(setup("inline"));
    data.slow = false;
    reference.train(data, order, 0, 0, done, {});
    reference.train(data, order, 0, done, 40 - done, {});
    const std::map<std::string, at::Tensor> expected = state_of(reference);
    for (const auto& [name, tensor] : state_of(session)) {
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << schedule << " " << name;
    }
  }
}

TEST(Loading, WaitingForSamplesIsNoComputing) {
  const Model model = mlp4();
  const SampleOrder order(40, 8, 1);
  Watched data(40);
  data.slow = true;
  Session session({.model = &model,
                   .plan = plan_of(model, {7}, 1, "1f1b", 2),
                   .policy = "",
                   .train = config_with("parallel", 8)});
  session.train(data, order, 0, 0, 5, {});
  const Trace trace = session.trace();
  double wait_s = 0;
  for (const TraceEvent& event : trace.ranks[0].events) {
    EXPECT_LE(event.wait_s, event.end_s - event.start_s);
    if (event.action.kind == ActionKind::kForward) {
      wait_s += event.wait_s;
    }
  }
  EXPECT_GT(wait_s, 0);
  EXPECT_DOUBLE_EQ(trace.ranks[0].wait_s, wait_s) << "nobody else is waited for";
}

// Other samples in every epoch.
class Changing final : public Dataset {
 public:
  int64_t size() const override { return data_.size(); }
  TensorSpec input() const override { return data_.input(); }
  TensorSpec target() const override { return data_.target(); }
  int64_t num_classes() const override { return 0; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    return data_.get(indices, count, dtype);
  }
  std::unique_ptr<Dataset> in_epoch(uint64_t seed, int64_t epoch) const override {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < size(); ++i) {
      all.push_back(i);
    }
    const Batch batch = get(all.data(), size(), at::kDouble);
    const double shift = 0.1 * static_cast<double>(seed) + static_cast<double>(epoch);
    return std::make_unique<testing::TensorData>(batch.input.add(shift), batch.target);
  }

 private:
  testing::TensorData data_ = mlp4_data(40);
};

TEST(Loading, AnEpochTrainsOnItsOwnFormOfTheSamples) {
  const Model model = mlp4();
  const SampleOrder order(40, 8, 1);
  const Changing data;
  const auto trained_on = [&](const Dataset& samples) {
    Session session({.model = &model,
                     .plan = plan_of(model, {3, 4}, 1, "1f1b", 2),
                     .policy = "",
                     .train = config_with("parallel", 8)});
    session.train(samples, order, 1, 0, 5, {});
    return state_of(session);
  };
  const std::unique_ptr<Dataset> form = data.in_epoch(config_with("parallel", 8).seed, 1);
  const std::map<std::string, at::Tensor> found = trained_on(data);
  for (const auto& [name, tensor] : trained_on(*form)) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
  EXPECT_FALSE(
      at::equal(found.at("linear1.weight"), trained_on(mlp4_data(40)).at("linear1.weight")));
}

}  // namespace
}  // namespace millrace
