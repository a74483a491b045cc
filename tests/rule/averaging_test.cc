// bsp-average and local-sgd.
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

Value tau(int64_t value) {
  Value options = Value::map();
  options.set("tau", Value::of(value));
  return options;
}

// Each member pulls towards a goal of its own; gradients are sums over its samples.
Values pull(int member, double samples, const Values& w) {
  Values sums;
  for (std::size_t i = 0; i < w.size(); ++i) {
    sums.push_back(samples * (w[i] - member - static_cast<double>(i)));
  }
  return sums;
}

// Members hold 1, 2, 3, ... samples.
WorldConfig pulling(int num_members) {
  WorldConfig config;
  config.num_members = num_members;
  config.initial = {3, 1, 4, 1};
  config.momentum = 0.9;
  config.decay = 0.01;
  config.own_samples = [](int member, int64_t) -> double { return member + 1; };
  config.gradient = [](int member, int64_t, const Values& w) {
    return pull(member, member + 1, w);
  };
  config.lr_at = [](int64_t step) { return step < 12 ? 0.1 : 0.01; };
  return config;
}

TEST(BspAverage, IsBspForLinearOptimizers) {
  for (const int num_members : {1, 2, 3, 5}) {
    WorldConfig config = pulling(num_members);
    RuleWorld sums("bsp", Value::map(), config);
    config.order = Order::kRandom;
    config.num_ranges = 2;
    RuleWorld average("bsp-average", Value::map(), config);
    RuleWorld local("local-sgd", tau(1), config);
    for (int segment = 0; segment < 2; ++segment) {
      sums.run(15);
      average.run(15);
      local.run(15);
      EXPECT_LT(distance(average.settled(), sums.settled()), 1e-13) << num_members;
      EXPECT_EQ(distance(local.settled(), average.settled()), 0) << num_members;
    }
  }
}

// AWAGD at k times the rate is SUBGD, whose gradients of k workers are summed and not divided.
TEST(BspAverage, AtKTimesTheRateIsTheSumOfGradients) {
  WorldConfig config = pulling(3);
  config.own_samples = {};
  config.gradient = [](int member, int64_t, const Values& w) { return pull(member, 1, w); };
  config.lr_at = {};
  config.lr = 3 * 0.05;
  RuleWorld world("bsp-average", Value::map(), config);
  world.run(30);

  Values w = config.initial;
  Values velocity(w.size(), 0);
  for (int step = 0; step < 30; ++step) {
    Values sum(w.size(), 0);
    for (int member = 0; member < 3; ++member) {
      const Values gradient = pull(member, 1, w);
      for (std::size_t i = 0; i < w.size(); ++i) {
        sum[i] += gradient[i] + config.decay * w[i];
      }
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      velocity[i] = config.momentum * velocity[i] + sum[i];
      w[i] -= 0.05 * velocity[i];
    }
  }
  EXPECT_LT(distance(world.settled(), w), 1e-12);
}

// Weights 0, gradients -1 a sample on member 0 and +1 on member 1, lr 0.1.
WorldConfig opposed(double samples_0, double samples_1) {
  WorldConfig config;
  config.num_elements = 1;
  config.own_samples = [=](int member, int64_t) { return member == 0 ? samples_0 : samples_1; };
  config.gradient = [=](int member, int64_t, const Values&) {
    return Values{member == 0 ? -samples_0 : samples_1};
  };
  return config;
}

TEST(Averages, MembersWeighByTheirSamples) {
  for (const char* rule : {"bsp-average", "local-sgd"}) {
    const auto after_one = [&](double samples_0, double samples_1) {
      RuleWorld world(rule, Value::map(), opposed(samples_0, samples_1));
      world.run(1);
      return world.settled()[0];
    };
    EXPECT_NEAR(after_one(1, 1), 0, 1e-15) << rule;
    EXPECT_NEAR(after_one(3, 1), 0.05, 1e-15) << rule;
    EXPECT_EQ(after_one(2, 0), 0.1) << rule;
    EXPECT_EQ(after_one(0, 0), 0) << rule;
  }
}

// Members as they would train alone, then their mean by samples; member 1 has none in step 1.
TEST(LocalSgd, TrainsAloneAndAverages) {
  const auto samples = [](int member, int64_t step) -> double {
    return member == 1 && step == 1 ? 0 : member + 1;
  };
  WorldConfig config = pulling(3);
  config.own_samples = samples;
  config.gradient = [&](int member, int64_t step, const Values& w) {
    return pull(member, samples(member, step), w);
  };
  config.order = Order::kRandom;
  RuleWorld world("local-sgd", tau(4), config);

  Values expected(4, 0);
  for (int member = 0; member < 3; ++member) {
    WorldConfig alone = config;
    alone.num_members = 1;
    alone.own_samples = [&](int, int64_t step) { return samples(member, step); };
    alone.gradient = [&](int, int64_t step, const Values& w) {
      return pull(member, samples(member, step), w);
    };
    RuleWorld one("bsp-average", Value::map(), alone);
    one.run(4);
    const double share = member == 1 ? 6.0 : 4.0 * (member + 1);
    for (std::size_t i = 0; i < 4; ++i) {
      expected[i] += share / 22 * one.weights(0)[i];
    }
  }
  world.run(4);
  EXPECT_LT(distance(world.settled(), expected), 1e-14);
  EXPECT_EQ(world.counts(0).reductions, 1);  // finish() found nothing left
  world.run(11);
  EXPECT_EQ(world.counts(0).reduced_elements, 4 * (1 + 3));
  EXPECT_EQ(distance(world.weights(2), world.settled()), 0);
}

TEST(LocalSgd, RefusesTauBelowOne) {
  const Error error = caught([] { RuleWorld("local-sgd", tau(0), WorldConfig{}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.key(), "rule.tau");
}

}  // namespace
}  // namespace millrace
