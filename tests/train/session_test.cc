#include "millrace/train/session.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "millrace/base/clock.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

using testing::plan_of;

TrainConfig config_of(int64_t batch) {
  TrainConfig config;
  config.batch = batch;
  config.lr = 0.05;
  config.momentum = 0.9;
  config.dtype = "float64";
  return config;
}

// A stop asked for in the middle of an epoch drains: all stages did the same steps, and the state
// equals that of a run that was given just so many steps.
TEST(Stop, DrainsAndEqualsARunOfThatLength) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(400);
  const SampleOrder order(400, 4, 1);
  for (const std::string schedule : {"pipedream", "1f1b", "gpipe"}) {
    for (const int replicas : {1, 2}) {
      if (schedule == "pipedream" && replicas > 1) {
        continue;
      }
      const Plan plan = plan_of(model, {2, 2, 3}, replicas, schedule);
      Session session({.model = &model, .plan = plan, .policy = "", .train = config_of(4)});
      std::atomic<int64_t> reported{0};
      const int64_t done = session.train(data, order, 0, 0, 100,
                                         {.on_step = [&](int64_t, const LossSums&) { ++reported; },
                                          .stop_requested = [&] { return reported >= 7; }});
      EXPECT_GE(done, 7);
      EXPECT_EQ(reported, done) << "every step that was done is told";
      Session reference({.model = &model, .plan = plan, .policy = "", .train = config_of(4)});
      ASSERT_EQ(reference.train(data, order, 0, 0, done, {}), done);
      const std::vector<NamedTensor> a = session.state();
      const std::vector<NamedTensor> b = reference.state();
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << schedule << " " << a[i].name;
      }
    }
  }
}

// Counts the microbatches whose forward ran and whose backward has not.
class Counted final : public Layer {
 public:
  explicit Counted(std::string name) : Layer(std::move(name)) {}
  const char* kind() const override { return "counted"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {{"w", {1}, 0.0, 1.0}}; }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    if (context.training) {
      saved = {inputs[0]};
      peak_ = std::max<int>(peak_, ++live_);
    }
    return inputs[0].mul(weights[0]);
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    kept = {saved[0], grad};
    saved.clear();
    --live_;
    return need_input_gradient ? Tensors{grad.mul(weights[0])} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& kept,
                       const Tensors& sums) const override {
    sums[0].add_(kept[0].mul(kept[1]).sum());
  }
  int live() const { return live_; }
  int peak() const { return peak_; }

 private:
  mutable int live_ = 0;  // used by one rank's thread
  mutable int peak_ = 0;
};

// C20: what a stage keeps depends on the depth below it, not on the number of microbatches or
// steps.
TEST(Memory, InFlightMicrobatchesOf1f1bDoNotGrowWithMicrobatchesOrSteps) {
  for (const int stages : {1, 2, 4}) {
    for (const int microbatches : {1, 4, 16, 64}) {
      for (const int64_t steps : {1, 6}) {
        Model model;
        model.name = "counted";
        model.input = {{1}, at::kDouble};
        model.target = {{1}, at::kDouble};
        std::vector<const Counted*> layers;
        for (int s = 0; s < stages; ++s) {
          auto layer = std::make_unique<Counted>("layer" + std::to_string(s));
          layers.push_back(layer.get());
          model.layers.push_back(std::move(layer));
        }
        model.loss = half_squared_error();
        const testing::TensorData data = testing::count_to(64 * 6);
        TrainConfig config = config_of(64);
        config.lr = 1e-6;
        Session session(
            {.model = &model,
             .plan = plan_of(model, std::vector<int>(static_cast<std::size_t>(stages), 1), 1,
                             "1f1b", microbatches),
             .policy = "",
             .train = config});
        ASSERT_EQ(session.train(data, SampleOrder(64 * 6, 64, 1), 0, 0, steps, {}), steps);
        for (int s = 0; s < stages; ++s) {
          EXPECT_EQ(layers[static_cast<std::size_t>(s)]->peak(), std::min(microbatches, stages - s))
              << "stage " << s << " of " << stages << ", " << microbatches << " microbatches";
          EXPECT_EQ(layers[static_cast<std::size_t>(s)]->live(), 0) << "nothing stays";
        }
      }
    }
  }
}

TEST(Failure, ALayerThatThrowsEndsTheRunWithItsPlaceAndCause) {
  for (const int failing_stage : {0, 1, 2}) {
    std::atomic<int> calls{0};
    Model model;
    model.name = "fragile";
    model.input = {{1}, at::kDouble};
    model.target = {{1}, at::kDouble};
    for (int s = 0; s < 3; ++s) {
      model.layers.push_back(std::make_unique<testing::Scale>(
          "layer" + std::to_string(s), s == failing_stage ? std::function<void()>([&] {
            if (++calls == 5) {
              throw std::runtime_error("the fifth call fails");
            }
          })
                                                          : std::function<void()>()));
    }
    model.loss = half_squared_error();
    const testing::TensorData data = testing::count_to(64);
    Session session({.model = &model,
                     .plan = plan_of(model, {1, 1, 1}, 1, "pipedream"),
                     .policy = "",
                     .train = config_of(1)});
    const double start_s = monotonic_s();
    try {
      session.train(data, SampleOrder(64, 1, 1), 0, 0, 64, {});
      FAIL() << "expected the layer's exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.rank(), failing_stage) << error.what();
      EXPECT_NE(std::string(error.what()).find("the fifth call fails"), std::string::npos)
          << error.what();
    }
    EXPECT_LT(monotonic_s() - start_s, 10) << "nobody waited for its deadline";
  }
}

TEST(Failure, ARankThatHangsIsATimeoutThatNamesWhoWaitsForWhat) {
  std::atomic<bool> hang{true};
  Model model;
  model.name = "slow";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.layers.push_back(std::make_unique<testing::Scale>("first", [&] {
    const double until_s = monotonic_s() + 20;
    while (hang && monotonic_s() < until_s) {
      std::this_thread::yield();
    }
  }));
  model.layers.push_back(std::make_unique<testing::Scale>("second"));
  model.loss = half_squared_error();
  const testing::TensorData data = testing::count_to(4);
  Session session({.model = &model,
                   .plan = plan_of(model, {1, 1}, 1, "1f1b"),
                   .policy = "",
                   .train = config_of(1),
                   .timeout_s = 0.3});
  // The stage that hangs cannot be interrupted inside a layer; it is let go once the other gave up.
  std::thread releaser([&] {
    const double until_s = monotonic_s() + 1.5;
    while (monotonic_s() < until_s) {
      std::this_thread::yield();
    }
    hang = false;
  });
  try {
    session.train(data, SampleOrder(4, 1, 1), 0, 0, 4, {});
    FAIL() << "expected a timeout";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    EXPECT_EQ(error.rank(), 1) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("microbatch 0"), std::string::npos) << error.what();
  }
  releaser.join();
}

TEST(Failure, AListenerThatThrowsStopsTheRanks) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(400);
  Session session({.model = &model,
                   .plan = plan_of(model, {3, 4}, 1, "pipedream"),
                   .policy = "",
                   .train = config_of(4)});
  EXPECT_THROW(
      session.train(
          data, SampleOrder(400, 4, 1), 0, 0, 100,
          {.on_step = [](int64_t, const LossSums&) { throw std::runtime_error("disk full"); },
           .stop_requested = {}}),
      std::runtime_error);
}

TEST(Trace, HoldsEveryActionInOrderWithCausesBeforeEffects) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(40);
  Session session({.model = &model,
                   .plan = plan_of(model, {3, 4}, 1, "pipedream"),
                   .policy = "",
                   .train = config_of(4)});
  session.train(data, SampleOrder(40, 4, 1), 0, 0, 10, {});
  const Trace trace = session.trace();
  EXPECT_EQ(trace.num_steps, 10);
  EXPECT_TRUE(trace.complete);
  ASSERT_EQ(trace.ranks.size(), 2U);
  std::vector<double> sent(10);
  for (const TraceEvent& event : trace.ranks[0].events) {
    if (event.action.kind == ActionKind::kSendForward) {
      sent[static_cast<std::size_t>(event.action.first)] = event.start_s;
    }
  }
  for (const RankTrace& rank : trace.ranks) {
    double last_end_s = 0;
    for (const TraceEvent& event : rank.events) {
      EXPECT_GE(event.start_s, last_end_s - 1e-9);
      EXPECT_GE(event.end_s, event.start_s);
      EXPECT_LE(event.wait_s, event.end_s - event.start_s + 1e-9);
      last_end_s = event.end_s;
      if (rank.stages.front() == 1 && event.action.kind == ActionKind::kForward) {
        EXPECT_GE(event.start_s, sent[static_cast<std::size_t>(event.action.first)]);
      }
    }
  }
  EXPECT_EQ(stage_times(trace).size(), 2U);
}

}  // namespace
}  // namespace millrace
