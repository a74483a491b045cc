// C18: the gradient is clipped by its norm over all stages, replicas counted once.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/base/error.h"
#include "millrace/train/oracle.h"
#include "millrace/train/session.h"
#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

using testing::plan_of;

// The sum of its input and of one weight per stage with a known gradient: d loss / d w = `gradient`
// for every sample, whatever the input.
class Constant final : public Layer {
 public:
  Constant(std::string name, double gradient) : Layer(std::move(name)), gradient_(gradient) {}
  const char* kind() const override { return "constant"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {{"w", {1}, 0.0, 1.0}}; }
  at::Tensor forward(const LayerContext& /*context*/, at::TensorList inputs,
                     const Tensors& /*weights*/, Tensors& saved) const override {
    saved = {inputs[0]};
    return inputs[0].clone();
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& saved,
                         const Tensors& /*weights*/, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& kept) const override {
    kept = {saved[0]};
    saved.clear();
    return need_input_gradient ? Tensors{grad.clone()} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& kept,
                       const Tensors& sums) const override {
    sums[0].add_(gradient_ * static_cast<double>(kept[0].size(0)));
  }

 private:
  double gradient_;
};

Model three_and_four() {
  Model model;
  model.name = "three-and-four";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.layers.push_back(std::make_unique<Constant>("three", 3));
  model.layers.push_back(std::make_unique<Constant>("four", 4));
  model.loss = half_squared_error();
  return model;
}

TrainConfig config_of(int64_t batch, double clip_norm) {
  TrainConfig config;
  config.batch = batch;
  config.lr = 1.0;
  config.dtype = "float64";
  config.clip_norm = clip_norm;
  return config;
}

// Weights start at 1 and lr is 1: what is missing of 1 is the clipped gradient.
TEST(Clipping, ThreeAndFourOnTwoStagesAreOneVectorOfNormFive) {
  const Model model = three_and_four();
  const testing::TensorData data = testing::count_to(8);
  struct Layout {
    std::vector<int> stages;
    int replicas;
    std::string schedule;
    int microbatches;
  };
  for (const Layout& layout :
       {Layout{{1, 1}, 1, "1f1b", 1}, Layout{{1, 1}, 2, "1f1b", 2}, Layout{{1, 1}, 4, "gpipe", 1},
        Layout{{2}, 1, "1f1b", 4}, Layout{{2}, 4, "1f1b", 2}, Layout{{2}, 1, "pipedream", 1}}) {
    Session session({.model = &model,
                     .plan = plan_of(model, layout.stages, layout.replicas, layout.schedule,
                                     layout.microbatches),
                     .policy = "",
                     .train = config_of(8, 1.0)});
    std::vector<double> norms;
    StepHooks hooks;
    hooks.on_norm = [&](int64_t, double norm) { norms.push_back(norm); };
    session.train(data, SampleOrder(8, 8, 1), 0, 0, 1, hooks);
    EXPECT_EQ(norms, std::vector<double>{5}) << "the norm before clipping";
    std::map<std::string, double> weights;
    for (const NamedTensor& tensor : session.state()) {
      weights[tensor.name] = tensor.tensor.item<double>();
    }
    EXPECT_NEAR(weights["three.w"], 1 - 0.6, 1e-15) << layout.schedule;
    EXPECT_NEAR(weights["four.w"], 1 - 0.8, 1e-15) << layout.schedule;
  }
}

TEST(Clipping, ANormBelowTheLimitChangesNoBit) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(40);
  const auto weights_with = [&](std::optional<double> clip_norm) {
    TrainConfig config = config_of(8, 1);
    config.lr = 0.05;
    config.clip_norm = clip_norm;
    Session session({.model = &model,
                     .plan = plan_of(model, {3, 4}, 2, "1f1b", 2),
                     .policy = "",
                     .train = config});
    session.train(data, SampleOrder(40, 8, 1), 0, 0, 5, {});
    std::vector<at::Tensor> all;
    for (const NamedTensor& tensor : session.state()) {
      all.push_back(tensor.tensor.clone());
    }
    return all;
  };
  const std::vector<at::Tensor> plain = weights_with(std::nullopt);
  const std::vector<at::Tensor> loose = weights_with(1e9);
  const std::vector<at::Tensor> tight = weights_with(1e-3);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], loose[i]));
    EXPECT_FALSE(at::equal(plain[i], tight[i]));
  }
}

TEST(Clipping, AgreesWithOneProcessInEveryLayout) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(40);
  const SampleOrder order(40, 8, 1);
  const std::vector<int64_t> all = order.epoch(0);
  for (const auto& [stages, replicas, microbatches] :
       {std::tuple(std::vector<int>{7}, 1, 1), std::tuple(std::vector<int>{3, 4}, 2, 3),
        std::tuple(std::vector<int>{2, 2, 2, 1}, 1, 4)}) {
    TrainConfig config = config_of(8, 0.5);
    config.optimizer = "adam";
    config.lr = 0.01;
    const Plan plan = plan_of(model, stages, replicas, "1f1b", microbatches);
    Session session({.model = &model, .plan = plan, .policy = "", .train = config});
    std::vector<at::Tensor> weights;
    for (const NamedTensor& tensor : session.state()) {
      if (tensor.name.find('/') == std::string::npos) {
        weights.push_back(tensor.tensor.clone());
      }
    }
    session.train(data, order, 0, 0, 5, {});
    WholeBatchOracle oracle(model, config);
    for (int64_t step = 0; step < 5; ++step) {
      weights =
          oracle.step(weights, data, all.data() + order.step_begin(step), 8).stages.at(0).weights;
    }
    std::size_t p = 0;
    for (const NamedTensor& tensor : session.state()) {
      if (tensor.name.find('/') == std::string::npos) {
        EXPECT_LE(testing::relative_difference(tensor.tensor, weights[p]), 1e-9) << tensor.name;
        ++p;
      }
    }
    // All replicas of a stage hold the same bits: they clipped by the same number.
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      const auto& ranks = plan.stages[static_cast<std::size_t>(stage)].ranks;
      for (int replica = 1; replica < static_cast<int>(ranks.size()); ++replica) {
        EXPECT_TRUE(at::equal(session.held(stage, replica).versions.newest(),
                              session.held(stage).versions.newest()));
      }
    }
  }
}

TEST(Clipping, SeveralStagesWithoutAFlushAreRefused) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(8);
  Session session({.model = &model,
                   .plan = plan_of(model, {3, 4}, 1, "pipedream"),
                   .policy = "",
                   .train = config_of(4, 1)});
  try {
    session.train(data, SampleOrder(8, 4, 1), 0, 0, 2, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
  }
}

}  // namespace
}  // namespace millrace
