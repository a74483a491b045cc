// Layers that stand for a profile's: their arithmetic is honest, their sizes follow the profile.
#include "millrace/model/emulated.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "millrace/base/random.h"
#include "tests/base/caught.h"

namespace millrace {
namespace {

at::Tensor draws(const std::string& name, const std::vector<int64_t>& sizes) {
  at::Tensor tensor = at::empty(sizes, at::kDouble);
  const RandomKey key = RandomKey(3).with(name);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.data_ptr<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return tensor;
}

struct Pass {
  at::Tensor output;
  Tensors input_gradients;
  at::Tensor weight_gradient;  // undefined without parameters
};

// One forward and backward of the gradient `grad` of the output.
Pass pass(const Layer& layer, const Tensors& inputs, const Tensors& weights,
          const at::Tensor& grad) {
  Pass result;
  const LayerContext context;
  Tensors saved;
  Tensors kept;
  result.output = layer.forward(context, inputs, weights, saved);
  result.input_gradients = layer.backward_input(context, saved, weights, grad, true, kept);
  Tensors sums;
  for (const at::Tensor& weight : weights) {
    sums.push_back(at::zeros(weight.sizes(), at::kDouble));
  }
  layer.backward_weight(context, kept, sums);
  if (!sums.empty()) {
    result.weight_gradient = sums[0];
  }
  return result;
}

struct Sizes {
  int64_t inputs, outputs, parameters;
};
constexpr Sizes kSizes[] = {{6, 6, 6},  {6, 3, 3},  {3, 7, 7}, {6, 4, 1}, {6, 4, 3},
                            {6, 4, 11}, {2, 5, 23}, {4, 1, 9}, {5, 3, 0}, {1, 1, 1}};

Tensors weights_of(const Sizes& sizes) {
  return sizes.parameters == 0 ? Tensors{} : Tensors{draws("weight", {sizes.parameters})};
}

// (loss(x + h) - loss(x - h)) / 2h for every element of `x`.
template <typename LossOf>
at::Tensor difference_quotient(at::Tensor x, const LossOf& loss) {
  constexpr double kStep = 1e-5;
  at::Tensor result = at::empty(x.sizes(), at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.data_ptr<double>()[i];
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    result.data_ptr<double>()[i] = (above - below) / (2 * kStep);
  }
  return result;
}

TEST(Emulated, GradientsAreThoseOfTheForward) {
  for (const Sizes& sizes : kSizes) {
    const LayerPtr layer = emulated("layer", sizes.outputs, sizes.parameters);
    const at::Tensor input = draws("input", {3, sizes.inputs});
    const at::Tensor grad = draws("grad", {3, sizes.outputs});
    const Tensors weights = weights_of(sizes);
    const at::Tensor other = draws("other", {3, sizes.inputs + 2});  // its skip edge
    const Pass found = pass(*layer, {input, other}, weights, grad);
    const auto loss = [&] {
      return pass(*layer, {input, other}, weights, grad).output.mul(grad).sum().item<double>();
    };
    // The function is bilinear: central differences are exact but for rounding, 1e-16 / 1e-5.
    ASSERT_EQ(found.input_gradients.size(), 2u);
    EXPECT_TRUE(at::allclose(found.input_gradients[0], difference_quotient(input, loss), 0, 1e-8));
    EXPECT_TRUE(at::allclose(found.input_gradients[1], difference_quotient(other, loss), 0, 1e-8));
    if (!weights.empty()) {
      EXPECT_TRUE(
          at::allclose(found.weight_gradient, difference_quotient(weights[0], loss), 0, 1e-8))
          << sizes.inputs << " " << sizes.outputs << " " << sizes.parameters;
      EXPECT_GT(found.weight_gradient.abs().min().item<double>(), 0) << "a parameter that is idle";
    }
  }
}

TEST(Emulated, EverySampleCountsOnce) {
  for (const Sizes& sizes : kSizes) {
    const LayerPtr layer = emulated("layer", sizes.outputs, sizes.parameters);
    const at::Tensor input = draws("input", {4, sizes.inputs});
    const at::Tensor grad = draws("grad", {4, sizes.outputs});
    const Tensors weights = weights_of(sizes);
    const Pass whole = pass(*layer, {input}, weights, grad);
    at::Tensor sum = at::zeros({std::max<int64_t>(1, sizes.parameters)}, at::kDouble);
    for (int64_t b = 0; b < 4; ++b) {
      const Pass one = pass(*layer, {input.narrow(0, b, 1).contiguous()}, weights,
                            grad.narrow(0, b, 1).contiguous());
      EXPECT_TRUE(at::allclose(one.output, whole.output.narrow(0, b, 1), 0, 0));
      EXPECT_TRUE(
          at::allclose(one.input_gradients[0], whole.input_gradients[0].narrow(0, b, 1), 0, 0));
      if (one.weight_gradient.defined()) {
        sum.add_(one.weight_gradient);
      }
    }
    if (sizes.parameters > 0) {
      EXPECT_TRUE(at::allclose(sum, whole.weight_gradient, 1e-12, 1e-14));
    }
  }
}

Profile small_profile() {
  Profile profile;
  profile.model = "small";
  profile.samples_per_microbatch = 4;
  for (const auto& [name, output, parameters] :
       {std::tuple{"a", 4 * 400, 0}, {"b", 4 * 100, 4000}, {"c", 4 * 8, 3}, {"d", 4 * 8, 80}}) {
    LayerProfile layer;
    layer.name = name;
    layer.output_bytes = output;
    layer.parameter_bytes = parameters;
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  return profile;
}

TEST(EmulatedModel, SizesAreTheProfilesShrunk) {
  const TensorSpec input{{1, 2, 3}, at::kFloat};
  const Model model = emulated_model(small_profile(), 10, input, 7);
  EXPECT_EQ(model.name, "small");
  EXPECT_THAT(model.layer_names(), testing::ElementsAre("a", "b", "c", "d"));
  const std::vector<TensorSpec> outputs = check_model(model);
  std::vector<int64_t> widths;
  for (const TensorSpec& output : outputs) {
    widths.push_back(output.sample_elements());
  }
  // 400 bytes a sample are 100 floats, 10 of them; a tensor never vanishes; the last is the
  // classes.
  EXPECT_THAT(widths, testing::ElementsAre(10, 3, 1, 7));
  std::vector<int64_t> parameters;
  for (const LayerPtr& layer : model.layers) {
    parameters.push_back(layer->parameters().empty() ? 0 : layer->parameters()[0].elements());
  }
  EXPECT_THAT(parameters, testing::ElementsAre(0, 100, 1, 2));
}

TEST(EmulatedModel, DefaultShrinkLeavesAMebibyte) {
  Profile profile = small_profile();
  EXPECT_EQ(default_shrink(profile), 1) << "a small model stays as it is";
  profile.layers[0].output_bytes = int64_t{1} << 29;
  profile.layers[1].parameter_bytes = int64_t{1} << 29;
  EXPECT_NEAR(default_shrink(profile), 1024, 0.01);
}

TEST(EmulatedModel, RefusesInputThatIsNoNumber) {
  const LayerPtr layer = emulated("first", 2, 2);
  EXPECT_THAT(caught([&] {
                check_model(emulated_model(small_profile(), 1, {{2}, at::kLong}, 2));
              }).message(),
              testing::HasSubstr("float32 or float64"));
}

TEST(EmulatedModel, FollowsTheProfilesEdges) {
  Profile profile = small_profile();
  profile.edges = {{"a", "b"}, {"b", "d"}, {"a", "d"}};
  EXPECT_THAT(caught([&] {
                emulated_model(profile, 1, {{2}, at::kFloat}, 2);
              }).message(),
              testing::HasSubstr("\"c\""))
      << "nobody uses it";
  profile.edges.push_back({"c", "d"});
  const Model model = emulated_model(profile, 1, {{2}, at::kFloat}, 2);
  EXPECT_THAT(model.inputs_of(0), testing::ElementsAre(kModelInput));
  EXPECT_THAT(model.inputs_of(1), testing::ElementsAre(0));
  EXPECT_THAT(model.inputs_of(2), testing::ElementsAre(kModelInput));
  EXPECT_THAT(model.inputs_of(3), testing::ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace millrace
