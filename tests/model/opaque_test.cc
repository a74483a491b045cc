// libtorch modules as layers: autograd's backward, weight versions in flight, refusals.
#include "millrace/model/opaque.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "millrace/model/layers.h"
#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two inputs, one weight used twice.
struct BilinearImpl : torch::nn::Cloneable<BilinearImpl> {
  BilinearImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    unused = register_parameter("unused", at::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return fc->forward(a).mul(fc->forward(b));
  }
  torch::nn::Linear fc{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(Bilinear);

struct NotCloneableImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(NotCloneable);

struct SumImpl : torch::nn::Cloneable<SumImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) { return x.sum(); }
};
TORCH_MODULE(Sum);

// conv - tanh - flatten - linear, with the two layers that have weights native or opaque. Seeded by
// the native layers' initial values in both.
Model model_of(bool opaque_layers) {
  Model model;
  model.name = "mixed";
  model.input = {{2, 5, 5}, at::kDouble};
  model.target = {{3}, at::kDouble};
  model.loss = half_squared_error();
  model.append(opaque_layers ? opaque("conv", torch::nn::Conv2d(2, 3, 3))
                             : conv2d("conv", 2, 3, 3));
  model.append(opaque_layers ? opaque("tanh", torch::nn::Tanh()) : tanh("tanh"));
  model.append(opaque_layers
                   ? opaque_function("flat", [](at::TensorList t) { return t[0].flatten(1); })
                   : flatten("flat"));
  model.append(opaque_layers ? opaque("fc", torch::nn::Linear(27, 3)) : linear("fc", 27, 3));
  return model;
}

struct ModelRun {
  explicit ModelRun(const Model& model)
      : stage(model, 0, static_cast<int>(model.layers.size())),
        sums(stage.new_flat()),
        sum_views(stage.views(sums)) {}
  void forward(const at::Tensor& flat, const at::Tensor& input, Stash& stash) {
    stage.forward({}, input, stage.views(flat), at::zeros({input.size(0), 3}, at::kDouble), stash,
                  loss);
  }
  Stage stage;
  at::Tensor sums;
  WeightViews sum_views;
  LossSums loss;
};

TEST(OpaqueLayer, AgreesWithNativeLayersUnderSeveralVersionsInFlight) {
  const Model native_model = model_of(false);
  const Model opaque_model = model_of(true);
  ModelRun native(native_model);
  ModelRun opaque_run(opaque_model);
  ASSERT_EQ(native.stage.flat_elements(), opaque_run.stage.flat_elements());
  EXPECT_EQ(opaque_run.stage.slots()[0].parameter, "weight");
  EXPECT_EQ(opaque_run.stage.slots()[1].parameter, "bias");
  // Microbatch m on version m; backwards in another order than forwards.
  Tensors versions;
  Tensors inputs;
  for (uint64_t m = 0; m < 3; ++m) {
    at::Tensor flat = native.stage.new_flat();
    native.stage.initialize(flat, m + 1);
    versions.push_back(flat);
    inputs.push_back(random_tensor({4, 2, 5, 5}, at::kDouble, m));
  }
  std::vector<Stash> native_stashes(3);
  std::vector<Stash> opaque_stashes(3);
  for (std::size_t m = 0; m < 3; ++m) {
    native.forward(versions[m], inputs[m], native_stashes[m]);
    opaque_run.forward(versions[m], inputs[m], opaque_stashes[m]);
  }
  EXPECT_NEAR(opaque_run.loss.loss / native.loss.loss, 1.0, 1e-12);
  for (const std::size_t m : {1U, 0U, 2U}) {
    native.stage.backward(native_stashes[m], native.stage.views(versions[m]), {}, native.sum_views);
    if (m == 0) {
      opaque_run.stage.backward_input(opaque_stashes[m], opaque_run.stage.views(versions[m]), {});
      opaque_run.stage.backward_weight({&opaque_stashes[m]}, opaque_run.sum_views);
    } else {
      opaque_run.stage.backward(opaque_stashes[m], opaque_run.stage.views(versions[m]), {},
                                opaque_run.sum_views);
    }
  }
  EXPECT_LE(difference(opaque_run.sums, native.sums), 1e-12);
  EXPECT_GT(native.sums.abs().max().item<double>(), 0.1);
}

TEST(OpaqueLayer, SeveralInputsAndUnusedParameters) {
  Bilinear module;
  const LayerPtr layer = opaque("bilinear", module);
  EXPECT_EQ(layer->output({{{4}, at::kDouble}, {{4}, at::kDouble}}),
            (TensorSpec{{4}, at::kDouble}));
  const std::vector<ParameterSpec> parameters = layer->parameters();
  ASSERT_EQ(parameters.size(), 3U);
  EXPECT_EQ(parameters[0].name, "unused");
  EXPECT_EQ(parameters[1].name, "fc.weight");
  EXPECT_TRUE(same_bits(parameters[1].initial, module->fc->weight.detach()));
  const Tensors weights = {random_tensor({3}, at::kDouble, 1),
                           random_tensor({4, 4}, at::kDouble, 2),
                           random_tensor({4}, at::kDouble, 3)};
  const Tensors inputs = {random_tensor({5, 4}, at::kDouble, 4),
                          random_tensor({5, 4}, at::kDouble, 5)};
  const at::Tensor grad = random_tensor({5, 4}, at::kDouble, 6);
  const Differentiated expected = by_autograd(
      [](const Tensors& t) {
        return t[0].matmul(t[2].t()).add(t[3]).mul(t[1].matmul(t[2].t()).add(t[3]));
      },
      {inputs[0], inputs[1], weights[1], weights[2]}, grad);
  Tensors saved;
  Tensors kept;
  EXPECT_LE(difference(layer->forward({}, inputs, weights, saved), expected.value), 1e-12);
  const Tensors back = layer->backward_input({}, saved, weights, grad, true, kept);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_LE(difference(back[0], expected.gradients[0]), 1e-12);
  EXPECT_LE(difference(back[1], expected.gradients[1]), 1e-12);
  const Tensors sums = {at::zeros({3}, at::kDouble), at::zeros({4, 4}, at::kDouble),
                        at::zeros({4}, at::kDouble)};
  layer->backward_weight({}, kept, sums);
  EXPECT_EQ(sums[0].abs().max().item<double>(), 0.0);
  EXPECT_LE(difference(sums[1], expected.gradients[2]), 1e-12);
  EXPECT_LE(difference(sums[2], expected.gradients[3]), 1e-12);
}

TEST(OpaqueLayer, StartsAtTheModulesOwnValues) {
  torch::nn::Linear module(3, 2);
  Model model;
  model.name = "one";
  model.input = {{3}};
  model.target = {{2}};
  model.loss = half_squared_error();
  model.append(opaque("fc", module));
  const Stage stage(model, 0, 1);
  at::Tensor flat = stage.new_flat();
  stage.initialize(flat, 1);
  EXPECT_TRUE(same_bits(stage.views(flat)[0][0], module->weight.detach()));
  EXPECT_TRUE(stage.layer(0).needs_forward_weights());
  EXPECT_FALSE(opaque("t", torch::nn::Tanh())->needs_forward_weights());
}

TEST(OpaqueLayer, EvaluationSavesNothing) {
  const LayerPtr layer = opaque("t", torch::nn::Tanh());
  Tensors saved;
  const at::Tensor input = random_tensor({2, 3}, at::kDouble, 1);
  EXPECT_TRUE(same_bits(layer->forward({.training = false}, input, {}, saved), input.tanh()));
  EXPECT_TRUE(saved.empty());
}

// C47: what a module cannot be used for is said with the layer's name and what to do instead.
TEST(OpaqueLayer, RefusalsNameTheLayerAndWhatToImplement) {
  EXPECT_THAT(message_of([] { opaque("norm", torch::nn::BatchNorm2d(3)); }),
              AllOf(HasSubstr("\"norm\""), HasSubstr("running_mean"), HasSubstr("batch_norm2d")));
  EXPECT_THAT(message_of([] { opaque("mine", NotCloneable()); }),
              AllOf(HasSubstr("\"mine\""), HasSubstr("torch::nn::Cloneable")));
  const LayerPtr sum = opaque("sum", Sum());
  EXPECT_THAT(message_of([&] { sum->output({{{3}}}); }),
              AllOf(HasSubstr("\"sum\""), HasSubstr("made []"), HasSubstr("millrace::Layer")));
  const LayerPtr fc = opaque("fc", torch::nn::Linear(3, 2));
  EXPECT_THAT(message_of([&] { fc->output({{{4}}}); }),
              AllOf(HasSubstr("\"fc\""), HasSubstr("float32 [4]"), HasSubstr("backward_input")));
  EXPECT_THAT(message_of([&] { fc->output({{{3}}, {{3}}}); }), HasSubstr("\"fc\""));
  EXPECT_EQ(fc->output({{{3}}}), (TensorSpec{{2}}));
}

}  // namespace
}  // namespace millrace::testing
