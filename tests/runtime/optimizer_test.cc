#include "millrace/runtime/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace millrace {
namespace {

class SgdAgainstLibtorch : public ::testing::TestWithParam<std::tuple<double, double>> {};

TEST_P(SgdAgainstLibtorch, FollowsItsTrajectory) {
  const auto [momentum, weight_decay] = GetParam();
  const int64_t n = 37;
  at::Tensor mine = at::randn({n}, at::kDouble);
  at::Tensor theirs = mine.clone().set_requires_grad(true);
  torch::optim::SGD reference(
      {theirs}, torch::optim::SGDOptions(0.1).momentum(momentum).weight_decay(weight_decay));
  Sgd sgd({.lr = 0.1, .momentum = momentum, .weight_decay = weight_decay}, n, at::kDouble);
  for (int step = 0; step < 20; ++step) {
    at::Tensor gradient_sum = at::randn({n}, at::kDouble);
    theirs.mutable_grad() = gradient_sum.div(8);
    reference.step();
    sgd.update(mine, mine, gradient_sum, 8);
    EXPECT_EQ(gradient_sum.abs().max().item<double>(), 0)
        << "the sums are cleared for the next step";
    const double difference = (mine - theirs.detach()).abs().max().item<double>();
    EXPECT_LE(difference, 1e-14 * theirs.detach().abs().max().item<double>() + 1e-15) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, SgdAgainstLibtorch,
                         ::testing::Combine(::testing::Values(0.0, 0.9),
                                            ::testing::Values(0.0, 0.01)));

TEST(Sgd, AnotherTargetGetsTheSameBitsAndLeavesTheCurrentAlone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const SgdConfig config{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.001};
    Sgd in_place(config, 100, dtype);
    Sgd aside(config, 100, dtype);
    at::Tensor weights = at::randn({100}, dtype);
    const at::Tensor original = weights.clone();
    at::Tensor target = at::full({100}, 7.0, dtype);
    at::Tensor gradient = at::randn({100}, dtype);
    at::Tensor same_gradient = gradient.clone();
    aside.update(weights, target, same_gradient, 3);
    EXPECT_TRUE(at::equal(weights, original));
    in_place.update(weights, weights, gradient, 3);
    EXPECT_TRUE(at::equal(weights, target));
  }
}

}  // namespace
}  // namespace millrace
