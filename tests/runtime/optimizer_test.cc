#include "millrace/runtime/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numeric>

#include "tests/base/caught.h"

namespace millrace {
namespace {

constexpr int64_t kElements = 48;

// Three parameters of 20, 16 and 12 elements.
FlatLayout layout_of(at::ScalarType dtype) { return {kElements, {0, 20, 36}, dtype}; }

TrainConfig config_of(const std::string& optimizer, double weight_decay) {
  TrainConfig config;
  config.optimizer = optimizer;
  config.weight_decay = weight_decay;
  if (optimizer == "sgd") {
    config.momentum = 0.9;
  } else {
    config.beta1 = 0.8;
    config.beta2 = 0.95;
  }
  if (optimizer == "accum-adam") {
    config.accumulate = 2;
  }
  return config;
}

std::unique_ptr<torch::optim::Optimizer> libtorch_optimizer(const TrainConfig& config,
                                                            const at::Tensor& weights, double lr) {
  if (config.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weights},
                                               torch::optim::SGDOptions(lr)
                                                   .momentum(config.momentum.value_or(0))
                                                   .weight_decay(*config.weight_decay));
  }
  const std::tuple<double, double> betas{*config.beta1, *config.beta2};
  if (config.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(
        std::vector<at::Tensor>{weights},
        torch::optim::AdamOptions(lr).betas(betas).weight_decay(*config.weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::vector<at::Tensor>{weights},
      torch::optim::AdamWOptions(lr).betas(betas).weight_decay(*config.weight_decay));
}

struct Setting {
  std::string optimizer;
  double momentum;
  double weight_decay;
};

class AgainstLibtorch : public ::testing::TestWithParam<Setting> {};

TEST_P(AgainstLibtorch, FollowsItsTrajectoryFor20Steps) {
  TrainConfig config = config_of(GetParam().optimizer, GetParam().weight_decay);
  if (config.momentum) {
    config.momentum = GetParam().momentum;
  }
  at::Tensor mine = at::randn({kElements}, at::kDouble);
  at::Tensor theirs = mine.clone().set_requires_grad(true);
  const auto reference = libtorch_optimizer(config, theirs, 0.1);
  const auto optimizer = make_optimizer(config, layout_of(at::kDouble));
  for (int step = 0; step < 20; ++step) {
    at::Tensor gradient_sum = at::randn({kElements}, at::kDouble);
    theirs.mutable_grad() = gradient_sum.div(8);
    reference->step();
    optimizer->update(mine, mine, gradient_sum, {.samples = 8, .lr = 0.1});
    EXPECT_EQ(gradient_sum.abs().max().item<double>(), 0)
        << "the sums are cleared for the next step";
    // Same formula, other order of roundings.
    const double difference = (mine - theirs.detach()).abs().max().item<double>();
    EXPECT_LE(difference, 2e-14 * theirs.detach().abs().max().item<double>()) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, AgainstLibtorch,
                         ::testing::Values(Setting{"sgd", 0, 0}, Setting{"sgd", 0, 0.01},
                                           Setting{"sgd", 0.9, 0}, Setting{"sgd", 0.9, 0.01},
                                           Setting{"adam", 0, 0}, Setting{"adam", 0, 0.1},
                                           Setting{"adamw", 0, 0}, Setting{"adamw", 0, 0.1}),
                         [](const auto& tested) {
                           return tested.param.optimizer + std::to_string(tested.index);
                         });

// The documented formulas, element by element, every intermediate rounded to T.
template <typename T>
void plain_step(const TrainConfig& config, std::vector<T>& w, const std::vector<T>& sums,
                std::vector<T>& first, std::vector<T>& second, std::vector<T>& third, int age,
                const UpdateFactors& factors) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const T mean = sums[i] / static_cast<T>(factors.samples);
    T g = mean * static_cast<T>(factors.clip);
    const T decay = static_cast<T>(*config.weight_decay);
    if (config.optimizer == "sgd") {
      g = g + decay * w[i];
      first[i] = static_cast<T>(*config.momentum) * first[i] + g;
      const T delta = -static_cast<T>(factors.lr) * first[i];
      w[i] = w[i] + delta;
      continue;
    }
    const bool decoupled = config.optimizer == "adamw";
    g = g + (decoupled ? T{0} : decay) * w[i];
    const double b1 = *config.beta1;
    const double b2 = *config.beta2;
    if (config.optimizer == "accum-adam") {
      // Moments change in updates 2, 4, ...; the bias exponent is the number of pairs begun.
      third[i] = third[i] + g / T{2};
      const int pairs = (age + 1) / 2;
      const T moment = first[i] + static_cast<T>(1 - b1) * g;
      const T square = second[i] + static_cast<T>(1 - b2) * g * g;
      const T root = static_cast<T>(std::sqrt(1 - std::pow(b2, pairs)));
      const T moved = static_cast<T>(factors.lr / (1 - std::pow(b1, pairs))) *
                      (moment / (std::sqrt(square) / root + static_cast<T>(1e-8)));
      w[i] = w[i] - moved;
      if (age % 2 == 0) {
        first[i] = static_cast<T>(b1) * (first[i] + static_cast<T>(1 - b1) * third[i]);
        second[i] = static_cast<T>(b2) * (second[i] + static_cast<T>(1 - b2) * third[i] * third[i]);
        third[i] = 0;
      }
      continue;
    }
    first[i] = static_cast<T>(b1) * first[i] + static_cast<T>(1 - b1) * g;
    second[i] = static_cast<T>(b2) * second[i] + static_cast<T>(1 - b2) * g * g;
    const T root = static_cast<T>(std::sqrt(1 - std::pow(b2, age)));
    const T scaled = first[i] / (std::sqrt(second[i]) / root + static_cast<T>(1e-8));
    const T moved = static_cast<T>(factors.lr / (1 - std::pow(b1, age))) * scaled;
    const T shrunk = static_cast<T>(decoupled ? factors.lr * *config.weight_decay : 0.0) * w[i];
    const T delta = -(moved + shrunk);
    w[i] = w[i] + delta;
  }
}

template <typename T>
std::vector<T> values_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<T>(), tensor.data_ptr<T>() + tensor.numel()};
}

template <typename T>
void expect_bits_of_a_plain_loop(at::ScalarType dtype) {
  for (const OptimizerEntry& entry : optimizers()) {
    const TrainConfig config = config_of(entry.name, 0.01);
    const auto optimizer = make_optimizer(config, layout_of(dtype));
    at::Tensor weights = at::randn({kElements}, dtype);
    std::vector<T> w = values_of<T>(weights);
    std::vector<T> first(w.size(), 0);
    std::vector<T> second(w.size(), 0);
    std::vector<T> third(w.size(), 0);
    for (int age = 1; age <= 5; ++age) {
      at::Tensor sums = at::randn({kElements}, dtype);
      const UpdateFactors factors{.samples = 3, .lr = 0.1 / age, .clip = age == 3 ? 0.3 : 1.0};
      plain_step<T>(config, w, values_of<T>(sums), first, second, third, age, factors);
      optimizer->update(weights, weights, sums, factors);
      EXPECT_EQ(values_of<T>(weights), w) << entry.name << " update " << age;
    }
    EXPECT_EQ(values_of<T>(optimizer->state()[0].tensor), first) << entry.name;
  }
}

TEST(EveryOptimizer, EqualsAPlainLoopBitForBitInFloat32) {
  expect_bits_of_a_plain_loop<float>(at::kFloat);
}
TEST(EveryOptimizer, EqualsAPlainLoopBitForBitInFloat64) {
  expect_bits_of_a_plain_loop<double>(at::kDouble);
}

TEST(EveryOptimizer, GivesAnotherTargetTheSameBitsAndLeavesTheCurrentAlone) {
  for (const OptimizerEntry& entry : optimizers()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const TrainConfig config = config_of(entry.name, 0.001);
      const auto in_place = make_optimizer(config, layout_of(dtype));
      const auto aside = make_optimizer(config, layout_of(dtype));
      at::Tensor weights = at::randn({kElements}, dtype);
      const at::Tensor original = weights.clone();
      at::Tensor target = at::full({kElements}, 7.0, dtype);
      at::Tensor gradient = at::randn({kElements}, dtype);
      at::Tensor same_gradient = gradient.clone();
      aside->update(weights, target, same_gradient, {.samples = 3, .lr = 0.05});
      EXPECT_TRUE(at::equal(weights, original)) << entry.name;
      in_place->update(weights, weights, gradient, {.samples = 3, .lr = 0.05});
      EXPECT_TRUE(at::equal(weights, target)) << entry.name;
    }
  }
}

TEST(EveryOptimizer, LeavesPaddingAtZero) {
  for (const OptimizerEntry& entry : optimizers()) {
    const auto optimizer = make_optimizer(config_of(entry.name, 0.1), layout_of(at::kFloat));
    at::Tensor weights = at::zeros({kElements}, at::kFloat);
    at::Tensor sums = at::zeros({kElements}, at::kFloat);
    optimizer->update(weights, weights, sums, {.samples = 1, .lr = 0.1});
    EXPECT_EQ(weights.abs().max().item<float>(), 0) << entry.name;
  }
}

// A checkpoint of one cut is loaded under another: state and ages go with the parameter.
TEST(EveryOptimizer, GoesOnFromItsStateUnderAnotherLayout) {
  for (const OptimizerEntry& entry : optimizers()) {
    const TrainConfig config = config_of(entry.name, 0.01);
    const auto whole = make_optimizer(config, layout_of(at::kDouble));
    at::Tensor weights = at::randn({kElements}, at::kDouble);
    const auto step = [](Optimizer& optimizer, at::Tensor& w, const at::Tensor& gradient) {
      at::Tensor sums = gradient.clone();
      optimizer.update(w, w, sums, {.samples = 2, .lr = 0.1});
    };
    for (int i = 0; i < 3; ++i) {
      step(*whole, weights, at::randn({kElements}, at::kDouble));
    }
    // The last two parameters on their own.
    const auto tail = make_optimizer(config, {kElements - 20, {0, 16}, at::kDouble});
    ASSERT_EQ(tail->state().size(), whole->state().size());
    for (std::size_t b = 0; b < tail->state().size(); ++b) {
      EXPECT_EQ(tail->state()[b].name, whole->state()[b].name);
      at::Tensor own = tail->state()[b].tensor;
      own.copy_(whole->state()[b].tensor.slice(0, 20));
    }
    if (whole->updates().defined()) {
      at::Tensor ages = tail->updates();
      ages.copy_(whole->updates().slice(0, 1));
    }
    at::Tensor tail_weights = weights.slice(0, 20).clone();
    const at::Tensor gradient = at::randn({kElements}, at::kDouble);
    step(*whole, weights, gradient);
    step(*tail, tail_weights, gradient.slice(0, 20));
    EXPECT_TRUE(at::equal(tail_weights, weights.slice(0, 20))) << entry.name;
  }
}

// Parameters that joined a stage at different ages keep their own bias correction.
TEST(Adam, CorrectsEachParameterByItsOwnAge) {
  const TrainConfig config = config_of("adam", 0);
  const auto optimizer = make_optimizer(config, {2, {0, 1}, at::kDouble});
  optimizer->updates().data_ptr<double>()[1] = 1000;
  at::Tensor weights = at::zeros({2}, at::kDouble);
  at::Tensor sums = at::full({2}, 1.0, at::kDouble);
  optimizer->update(weights, weights, sums, {.samples = 1, .lr = 0.1});
  EXPECT_NEAR(weights[0].item<double>(), -0.1, 1e-8) << "a first update moves by lr";
  EXPECT_NEAR(weights[1].item<double>(), -0.1 * 0.2 / std::sqrt(0.05), 1e-8);
  EXPECT_EQ(optimizer->updates()[0].item<double>(), 1);
  EXPECT_EQ(optimizer->updates()[1].item<double>(), 1001);
}

TEST(AccumAdam, WithoutAccumulationIsAdamBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    TrainConfig config = config_of("accum-adam", 0.01);
    config.accumulate = 1;
    const auto accumulating = make_optimizer(config, layout_of(dtype));
    const auto adam = make_optimizer(config_of("adam", 0.01), layout_of(dtype));
    at::Tensor weights = at::randn({kElements}, dtype);
    at::Tensor same = weights.clone();
    for (int age = 1; age <= 20; ++age) {
      at::Tensor sums = at::randn({kElements}, dtype);
      at::Tensor same_sums = sums.clone();
      const UpdateFactors factors{.samples = 3, .lr = 0.1 / age, .clip = age == 3 ? 0.3 : 1.0};
      accumulating->update(weights, weights, sums, factors);
      adam->update(same, same, same_sums, factors);
      ASSERT_TRUE(at::equal(weights, same)) << age;
    }
  }
}

// One parameter, gradients 1, 3, 2 and k = 2, by hand: beta1 0.8, beta2 0.95, lr 0.1.
TEST(AccumAdam, ChangesItsMomentsByTheMeanGradient) {
  const auto optimizer = make_optimizer(config_of("accum-adam", 0), {1, {0}, at::kDouble});
  at::Tensor weight = at::zeros({1}, at::kDouble);
  double expected = 0;
  const auto expect_update = [&](double gradient, double moment, double square, int pairs) {
    at::Tensor sums = at::full({1}, gradient, at::kDouble);
    optimizer->update(weight, weight, sums, {.samples = 1, .lr = 0.1});
    expected -= 0.1 * (moment / (1 - std::pow(0.8, pairs))) /
                std::sqrt(square / (1 - std::pow(0.95, pairs)));
    EXPECT_NEAR(weight.item<double>(), expected, 1e-8);
  };
  expect_update(1, 0.2, 0.05, 1);
  expect_update(3, 0.6, 0.45, 1);
  // The mean was 2: m = 0.8 x 0.4, v = 0.95 x 0.2.
  expect_update(2, 0.32 + 0.4, 0.19 + 0.2, 2);
  EXPECT_EQ(optimizer->state()[2].name, "accumulated");
  EXPECT_EQ(optimizer->state()[2].tensor.item<double>(), 1);
}

TEST(OptimizerTable, StateIsWhatCheckpointsName) {
  TrainConfig config;
  EXPECT_TRUE(optimizer_state(config).buffers.empty()) << "plain SGD keeps nothing";
  config.momentum = 0.9;
  EXPECT_EQ(optimizer_state(config).buffers, std::vector<std::string>{"velocity"});
  for (const char* name : {"adam", "adamw"}) {
    TrainConfig adam;
    adam.optimizer = name;
    EXPECT_EQ(optimizer_state(adam).buffers, (std::vector<std::string>{"m", "v"}));
    EXPECT_TRUE(optimizer_state(adam).counts_updates);
  }
  TrainConfig accumulating;
  accumulating.optimizer = "accum-adam";
  EXPECT_EQ(optimizer_state(accumulating).buffers,
            (std::vector<std::string>{"m", "v", "accumulated"}));
}

TEST(OptimizerTable, RefusesKeysOfOthersAndUnknownNames) {
  TrainConfig config;
  config.optimizer = "adamw";
  config.momentum = 0.9;
  const Error key = caught([&] { make_optimizer(config, {}); });
  EXPECT_EQ(key.key(), "train.momentum");
  EXPECT_NE(key.message().find("sgd does"), std::string::npos) << key.message();
  config.optimizer = "adamv";
  EXPECT_EQ(caught([&] { make_optimizer(config, {}); }).key(), "train.optimizer");
}

}  // namespace
}  // namespace millrace
