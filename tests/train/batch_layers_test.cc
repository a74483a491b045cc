// Batch norm and dropout in a pipeline: what they compute depends on how a minibatch is cut, or on
// the step and a sample's place, and must be the oracle's whatever the layout.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "millrace/train/oracle.h"
#include "millrace/train/session.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using testing::config_of;
using testing::plan_of;
using testing::relative_difference;
using testing::state_of;

Model small_image_model() {
  Model model;
  model.name = "small";
  model.input = {{1, 4, 4}, at::kDouble};
  model.target = {{3}, at::kDouble};
  model.loss = half_squared_error();
  model.append(conv2d("conv", 1, 3, 3, 1, 1, /*bias=*/false));
  model.append(batch_norm2d("bn", 3));
  model.append(dropout("drop", 0.25));
  model.append(flatten("flatten"));
  model.append(linear("fc1", 48, 6));
  model.append(tanh("tanh"));
  model.append(dropout("drop2", 0.5));
  model.append(linear("fc2", 6, 3));
  return model;
}

testing::TensorData small_images(int64_t n) {
  const RandomKey key = RandomKey(3).with("images");
  at::Tensor x = at::zeros({n, 1, 4, 4}, at::kDouble);
  at::Tensor y = at::zeros({n, 3}, at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data_ptr<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.data_ptr<double>()[i] = key.with("y").normal(static_cast<uint64_t>(i));
  }
  return {x, y};
}

// Two epochs of steps of 8, 8 and 5 samples.
TEST(BatchLayers, EveryLayoutEqualsTheOracleCutAlike) {
  const Model model = small_image_model();
  const testing::TensorData data = small_images(21);
  const SampleOrder order(21, 8, 1);
  const TrainConfig config = config_of(8, 0.05);
  for (const auto& [stages, replicas, microbatches] : {std::tuple{std::vector<int>{8}, 1, 1},
                                                       {{8}, 1, 3},
                                                       {{1, 7}, 1, 2},
                                                       {{2, 3, 3}, 2, 2},
                                                       {{3, 5}, 2, 1}}) {
    SCOPED_TRACE(::testing::Message() << stages.size() << " stages, " << replicas << " replicas, "
                                      << microbatches << " microbatches");
    Session session({.model = &model,
                     .plan = plan_of(model, stages, replicas, "1f1b", microbatches),
                     .policy = "",
                     .train = config});
    WholeBatchOracle oracle(model, config, replicas * microbatches);
    std::vector<at::Tensor> weights;
    std::vector<std::string> names;
    for (const NamedTensor& tensor : session.state()) {
      if (tensor.name.find("running") == std::string::npos) {
        weights.push_back(tensor.tensor.clone());
        names.push_back(tensor.name);
      }
    }
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      session.train(data, order, epoch, 0, 3, {});
      const std::vector<int64_t> all = order.epoch(epoch);
      for (int64_t step = 0; step < 3; ++step) {
        weights = oracle
                      .step(weights, data, all.data() + order.step_begin(step),
                            order.step_size(step), epoch * 3 + step)
                      .stages.at(0)
                      .weights;
      }
    }
    const std::map<std::string, at::Tensor> state = state_of(session);
    for (std::size_t p = 0; p < names.size(); ++p) {
      EXPECT_LE(relative_difference(state.at(names[p]), weights[p]), 1e-9) << names[p];
    }
    EXPECT_TRUE(state.contains("bn.running_mean"));
  }
}

// One step of 8 samples; the weights are those that made the buffers, since the update came after.
TEST(BatchLayers, ReplicasAverageTheirBuffersBySamples) {
  const Model model = small_image_model();
  const testing::TensorData data = small_images(7);
  const TrainConfig config = config_of(7, 0.05);
  const SampleOrder order(7, 7, 1);
  // The larger replica's buffers and the smaller one's, from runs of one worker on their samples.
  const std::vector<int64_t> epoch = order.epoch(0);
  std::vector<at::Tensor> apart;
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 4}, {4, 3}}) {
    const Stage stage(model, 0, static_cast<int>(model.layers.size()));
    at::Tensor flat = stage.new_flat();
    stage.initialize(flat, config.seed);
    const Tensors buffers = stage.new_buffers();
    const Batch batch = data.get(epoch.data() + begin, size, at::kDouble);
    Stash stash;
    LossSums sums;
    stage.forward({.buffers = buffers}, batch.input, stage.views(flat), batch.target, stash, sums);
    apart.push_back(buffers[0].clone());
  }
  Session session({.model = &model,
                   .plan = plan_of(model, {2, 6}, 2, "1f1b", 1),
                   .policy = "",
                   .train = config});
  session.train(data, order, 0, 0, 1, {});
  const at::Tensor average = apart[0].mul(4.0 / 7).add(apart[1].mul(3.0 / 7));
  EXPECT_LE(relative_difference(state_of(session).at("bn.running_mean"), average), 1e-14);
  // Nothing was trained since: the average stays as it is.
  EXPECT_LE(relative_difference(state_of(session).at("bn.running_mean"), average), 1e-14);
}

TEST(BatchLayers, BuffersAreSavedAndLoadedByName) {
  const Model model = small_image_model();
  const testing::TensorData data = small_images(8);
  const SampleOrder order(8, 8, 1);
  const auto setup = [&](const std::vector<int>& stages, int replicas) {
    return SessionSetup{.model = &model,
                        .plan = plan_of(model, stages, replicas, "1f1b", 1),
                        .policy = "",
                        .train = config_of(8, 0.05)};
  };
  Session trained(setup({8}, 1));
  trained.train(data, order, 0, 0, 1, {});
  Session loaded(setup({2, 6}, 2));
  for (const NamedTensor& tensor : trained.state()) {
    EXPECT_TRUE(loaded.load(tensor.name, tensor.tensor)) << tensor.name;
  }
  const LossSums a = trained.evaluate(data, 3);
  const LossSums b = loaded.evaluate(data, 3);
  EXPECT_NEAR(a.loss, b.loss, 1e-12);
  EXPECT_EQ(a.samples, 8);
}

// A linear layer whose backward, as that of an opaque layer, is tied to its forward's weights.
class Tied final : public Layer {
 public:
  explicit Tied(std::string name) : Layer(std::move(name)) {}
  const char* kind() const override { return "tied"; }
  bool needs_forward_weights() const override { return true; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inner_->output(inputs); }
  std::vector<ParameterSpec> parameters() const override { return inner_->parameters(); }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    return inner_->forward(context, inputs, weights, saved);
  }
  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    return inner_->backward_input(context, saved, weights, grad, need_input_gradient, kept);
  }
  void backward_weight(const LayerContext& context, const Tensors& kept,
                       const Tensors& sums) const override {
    inner_->backward_weight(context, kept, sums);
  }

 private:
  LayerPtr inner_ = linear("inner", 8, 8);
};

TEST(TiedLayers, PoliciesThatChangeTheBackwardsWeightsAreRefused) {
  Model model;
  model.name = "tied";
  model.input = {{8}, at::kDouble};
  model.target = {{4}, at::kDouble};
  model.loss = half_squared_error();
  model.append(std::make_unique<Tied>("mine"));
  model.append(linear("head", 8, 4));
  const testing::TensorData data = testing::mlp4_data(12);
  const SampleOrder order(12, 3, 1);
  const auto train = [&](const std::string& schedule, const std::string& policy) {
    Session session({.model = &model,
                     .plan = plan_of(model, {1, 1}, 1, schedule),
                     .policy = policy,
                     .train = config_of(3, 0.05)});
    return session.train(data, order, 0, 0, 4, {});
  };
  EXPECT_EQ(train("pipedream", "stash"), 4);
  EXPECT_EQ(train("1f1b", ""), 4);
  try {
    train("pipedream", "latest");
    FAIL() << "latest gives a backward other weights";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("\"mine\""), std::string::npos) << error.what();
    EXPECT_EQ(error.stage(), 0);
  }
}

// A skip edge inside a stage is run; one across a cut is refused, naming what would have to pass.
TEST(BatchLayers, SkipEdgesInsideAStage) {
  Model model;
  model.name = "residual";
  model.input = {{8}, at::kDouble};
  model.target = {{4}, at::kDouble};
  model.loss = half_squared_error();
  const int a = model.append(linear("a", 8, 8));
  const int t = model.append(tanh("t"));
  model.append(add("sum"), {t, a});
  model.append(linear("b", 8, 4));
  const testing::TensorData data = testing::mlp4_data(6);
  const SampleOrder order(6, 6, 1);
  const TrainConfig config = config_of(6, 0.05);
  Session session({.model = &model,
                   .plan = plan_of(model, {3, 1}, 2, "1f1b", 1),
                   .policy = "",
                   .train = config});
  WholeBatchOracle oracle(model, config);
  std::vector<at::Tensor> weights;
  for (const NamedTensor& tensor : session.state()) {
    weights.push_back(tensor.tensor.clone());
  }
  session.train(data, order, 0, 0, 1, {});
  weights = oracle.step(weights, data, order.epoch(0).data(), 6).stages.at(0).weights;
  std::size_t p = 0;
  for (const NamedTensor& tensor : session.state()) {
    EXPECT_LE(relative_difference(tensor.tensor, weights[p++]), 1e-9) << tensor.name;
  }
}

}  // namespace
}  // namespace millrace
