#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

Value width(int64_t value) {
  Value options = Value::map();
  options.set("width", Value::of(value));
  return options;
}

double samples_of(int member, int64_t step) {
  if (step == 5) {
    return 0;  // an update without any
  }
  return member == 1 && step % 3 == 0 ? 0 : static_cast<double>(member + 1 + step % 2);
}

Values gradient_of(int member, int64_t step, const Values& w) {
  Values sums;
  for (std::size_t i = 0; i < w.size(); ++i) {
    sums.push_back(samples_of(member, step) * (0.7 * w[i] - member + 0.3 * static_cast<double>(i)));
  }
  return sums;
}

WorldConfig config_of(int num_members) {
  WorldConfig config;
  config.num_members = num_members;
  config.initial = {0.1, 2, -3, 0.7};
  config.momentum = 0.9;
  config.decay = 0.02;
  config.own_samples = samples_of;
  config.gradient = gradient_of;
  config.lr_at = [](int64_t step) { return step < 9 ? 0.1 : 0.03; };
  config.order = Order::kRandom;
  return config;
}

// Momentum SGD whose update t applies the sum of update t - delay, in an order of operations that
// the test world shares; after the last one come those that are left, at its rate.
template <class T>
std::vector<T> delayed(const WorldConfig& config, int delay, int num_updates) {
  std::vector<T> w(config.initial.begin(), config.initial.end());
  std::vector<T> velocity(w.size(), 0);
  std::vector<std::vector<T>> sums;
  std::vector<double> samples;
  for (int update = 0; update < num_updates + delay; ++update) {
    if (update < num_updates) {
      sums.emplace_back(w.size(), T(0));
      samples.push_back(0);
      for (int member = 0; member < config.num_members; ++member) {
        samples.back() += samples_of(member, update);
        if (samples_of(member, update) > 0) {
          const Values part = gradient_of(member, update, Values(w.begin(), w.end()));
          for (std::size_t i = 0; i < w.size(); ++i) {
            sums.back()[i] += static_cast<T>(part[i]);
          }
        }
      }
    }
    const int applied = update - delay;
    if (applied < 0 || samples[static_cast<std::size_t>(applied)] == 0) {
      continue;
    }
    const auto at = static_cast<std::size_t>(applied);
    const T lr = static_cast<T>(config.lr_at(std::min(update, num_updates - 1)));
    for (std::size_t i = 0; i < w.size(); ++i) {
      velocity[i] = static_cast<T>(config.momentum) * velocity[i] +
                    sums[at][i] / static_cast<T>(samples[at]) + static_cast<T>(config.decay) * w[i];
      const T delta = -lr * velocity[i];
      w[i] += delta;
    }
  }
  return w;
}

template <class T>
void expect_delayed(int num_members, int delay) {
  WorldConfig config = config_of(num_members);
  config.is_double = std::is_same_v<T, double>;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    config.seed = seed;
    config.in_place = seed % 2 == 0;
    RuleWorld world("pipe-sgd", width(delay + 1), config);
    world.run(15);
    const std::vector<T> oracle = delayed<T>(config, delay, 15);
    EXPECT_EQ(distance(world.settled(), Values(oracle.begin(), oracle.end())), 0)
        << num_members << " members, delay " << delay;
  }
}

TEST(PipeSgd, IsDelayedSgdBitForBit) {
  for (const int num_members : {1, 2, 3, 4}) {
    for (const int delay : {0, 1, 2, 4, 20}) {
      expect_delayed<double>(num_members, delay);
      expect_delayed<float>(num_members, delay);
    }
  }
}

TEST(PipeSgd, OfWidthOneIsBspBitForBit) {
  for (const int num_members : {2, 4}) {
    WorldConfig config = config_of(num_members);
    // bsp is not asked for updates without samples.
    config.own_samples = [](int member, int64_t) -> double { return member + 1; };
    config.gradient = {};
    RuleWorld pipe("pipe-sgd", width(1), config);
    RuleWorld bsp("bsp", Value::map(), config);
    pipe.run(15);
    bsp.run(15);
    EXPECT_EQ(distance(pipe.settled(), bsp.settled()), 0);
  }
}

TEST(PipeSgd, ReplicasMakeEqualUpdatesAndApplyEveryGradientOnce) {
  WorldConfig config = config_of(3);
  config.own_samples = {};
  config.gradient = {};
  RuleWorld world("pipe-sgd", width(3), config);
  world.run(10);
  world.run(1);  // shorter than the pipe
  world.run(7);
  for (int member = 0; member < 3; ++member) {
    ASSERT_EQ(world.applied(member).size(), 18);
    EXPECT_EQ(world.counts(member).reductions, 18);
    for (std::size_t i = 0; i < 18; ++i) {
      EXPECT_EQ(world.applied(member)[i].delta, world.applied(0)[i].delta);
    }
  }
  // Two updates pass before the first sum is applied, and the last two come in finish().
  EXPECT_EQ(world.applied(0)[0].step, 2);
  EXPECT_EQ(world.applied(0)[9].step, 9);
  EXPECT_EQ(world.applied(0)[8].step, 9);
}

TEST(PipeSgd, IsSynchronousWhileItWarmsUp) {
  WorldConfig config = config_of(3);
  config.own_samples = {};
  config.gradient = {};
  Value options = width(3);
  options.set("warmup", Value::of(5));
  RuleWorld world("pipe-sgd", options, config);
  world.run(9);
  std::vector<int64_t> steps;
  for (const auto& applied : world.applied(0)) {
    steps.push_back(applied.step);
  }
  // Five at once, none for two updates, then two behind; finish() applies the last two.
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 7, 8, 8, 8}));

  options.set("warmup", Value::of(20));
  RuleWorld warm("pipe-sgd", options, config);
  RuleWorld synchronous("pipe-sgd", width(1), config);
  warm.run(15);
  synchronous.run(15);
  EXPECT_EQ(distance(warm.settled(), synchronous.settled()), 0);
}

TEST(PipeSgd, RefusesWidthsBelowOne) {
  const Error error = caught([] { RuleWorld("pipe-sgd", width(0), WorldConfig{}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.key(), "rule.width");
}

}  // namespace
}  // namespace millrace
