// Cases that users of such systems hit, under exchange rules: unequal numbers of batches, when
// gradients are reduced, and what momentum and the number of workers do to each other. By hand, on
// one scalar weight: prediction w x, loss (w x)^2 / 2 a sample.
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/rule/rule.h"
#include "millrace/train/session.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using testing::config_of;
using testing::plan_of;
using testing::state_of;

Plan plan_with(const Model& model, const std::string& rule, int replicas, int microbatches) {
  Plan plan = plan_of(model, {2}, replicas, "1f1b", microbatches);
  plan.rule = rule;
  return plan;
}

// C13: x = 1..5 in batches of 2 on two workers: worker 0 has 3 of them in an epoch, worker 1 has 2.
TEST(UnequalBatches, EveryRuleGoesOnAndTheLastStepDividesByTheSamplesThatThereAre) {
  const Model model = testing::lin();
  const testing::TensorData data = testing::count_to(5);
  const SampleOrder order(5, 2, 1);
  ASSERT_EQ(order.steps_per_epoch(), 3);
  const TrainConfig config = config_of(2, 0.01);
  double expected = 1;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> samples = order.epoch(epoch);
    for (int64_t step = 0; step < 3; ++step) {
      double squares = 0;
      for (int64_t i = 0; i < order.step_size(step); ++i) {
        const double x =
            static_cast<double>(samples[static_cast<std::size_t>(order.step_begin(step) + i)] + 1);
        squares += x * x;
      }
      expected -= 0.01 * expected * squares / static_cast<double>(order.step_size(step));
    }
  }
  for (const RuleEntry& rule : rules()) {
    Session session({.model = &model,
                     .plan = plan_with(model, rule.name, 2, 1),
                     .policy = "",
                     .train = config});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> samples;
      EXPECT_EQ(
          session.train(
              data, order, epoch, 0, 3,
              {.on_step = [&](int64_t, const LossSums& sums) { samples.push_back(sums.samples); }}),
          3)
          << rule.name;
      EXPECT_EQ(samples, (std::vector<int64_t>{2, 2, 1})) << rule.name;
    }
    const double weight = state_of(session).at("w.w").item<double>();
    // easgd's centre has not moved yet.
    EXPECT_TRUE(std::isfinite(weight) && weight <= 1) << rule.name;
    for (const char* exact : {"bsp", "bsp-average", "server-sync", "gradient-flow", "daso"}) {
      if (rule.name == exact) {
        EXPECT_NEAR(weight, expected, 1e-14) << rule.name;
      }
    }
  }
}

// C17: x = 1, 2 on worker 0 and 3, 4 on worker 1, two parts each: one reduction, after the last.
TEST(WhenToReduce, AfterTheLastPartOfAStep) {
  const Model model = testing::lin();
  const testing::TensorData data = testing::count_to(4);
  for (const char* rule : {"bsp", "gradient-flow", "bsp-average", "server-sync"}) {
    Session session({.model = &model,
                     .plan = plan_with(model, rule, 2, 2),
                     .policy = "",
                     .train = config_of(4)});
    session.train(data, SampleOrder(4, 4, 1), 0, 0, 1, {});
    for (const int replica : {0, 1}) {
      EXPECT_NEAR(session.held(0, replica).versions.newest()[0].item<double>(), 0.25, 1e-15)
          << rule << " on worker " << replica;
    }
    for (const RankTrace& rank : session.trace().ranks) {
      int reductions = 0;
      for (const TraceEvent& event : rank.events) {
        reductions += event.action.kind == ActionKind::kReduce ? 1 : 0;
      }
      EXPECT_EQ(reductions, 1) << rule;
    }
  }
}

// C29: momentum 0.9, the batch 1..4 on 1, 2 and 4 workers, three steps, with and without a rate
// that warms up.
TEST(MomentumAndWorkers, TheNumberOfWorkersChangesNothing) {
  const Model model = testing::lin();
  const testing::TensorData data = testing::count_to(4);
  const SampleOrder order(4, 4, 1);
  for (const int64_t warmup : {0, 2}) {
    TrainConfig config = config_of(4, 0.02);
    config.momentum = 0.9;
    config.warmup_steps = warmup;
    const LrSchedule lr(config, order.steps_per_epoch());
    double expected = 1;
    double velocity = 0;
    for (int64_t step = 0; step < 3; ++step) {
      velocity = 0.9 * velocity + 7.5 * expected;
      expected -= lr.at(step) * velocity;
    }
    if (warmup == 0) {
      EXPECT_NEAR(lr.at(0), 0.02, 0) << "the rate is what run.toml says";
    }
    for (const char* rule : {"bsp", "bsp-average", "server-sync", "gradient-flow", "daso"}) {
      for (const int workers : {1, 2, 4}) {
        Session session({.model = &model,
                         .plan = plan_with(model, rule, workers, 1),
                         .policy = "",
                         .train = config});
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
          ASSERT_EQ(session.train(data, order, epoch, 0, 1, {}), 1);
        }
        EXPECT_NEAR(state_of(session).at("w.w").item<double>(), expected, 1e-14)
            << rule << " on " << workers;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
