// Layers whose forward knows more than its input: batch norm (the whole microbatch, buffers),
// dropout (step and place), embedding (integers), and sums of several inputs.
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/model/layers.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NormShape {
  const char* name;
  int64_t batch;
  int64_t channels;
  int64_t height;
  int64_t width;
};

class BatchNorm : public ::testing::TestWithParam<std::tuple<NormShape, at::ScalarType>> {
 protected:
  NormShape shape_ = std::get<0>(GetParam());
  at::ScalarType dtype_ = std::get<1>(GetParam());
  LayerPtr layer_ = batch_norm2d("bn", shape_.channels);
  // A mean that is large beside the deviation: a one-pass variance would lose it.
  at::Tensor input_ =
      random_tensor({shape_.batch, shape_.channels, shape_.height, shape_.width}, dtype_, 1)
          .mul(0.5)
          .add(3);
  at::Tensor grad_ = random_tensor(input_.sizes().vec(), dtype_, 2);
  Tensors weights_ = {random_tensor({shape_.channels}, dtype_, 3),
                      random_tensor({shape_.channels}, dtype_, 4)};
  Tensors buffers_ = {random_tensor({shape_.channels}, dtype_, 5),
                      random_tensor({shape_.channels}, dtype_, 6).abs().add(0.1)};
};

TEST_P(BatchNorm, TrainingAgreesWithLibtorch) {
  at::Tensor running_mean = buffers_[0].clone();
  at::Tensor running_var = buffers_[1].clone();
  const Differentiated expected = by_autograd(
      [&](const Tensors& t) {
        return at::batch_norm(t[0], t[1], t[2], running_mean, running_var, true, 0.1, 1e-5, false);
      },
      {input_, weights_[0], weights_[1]}, grad_);
  const LayerContext context{.buffers = buffers_};
  Tensors saved;
  Tensors kept;
  EXPECT_LE(difference(layer_->forward(context, input_, weights_, saved), expected.value),
            tolerance(dtype_));
  EXPECT_LE(difference(buffers_[0], running_mean), tolerance(dtype_));
  EXPECT_LE(difference(buffers_[1], running_var), tolerance(dtype_));

  const Tensors back = layer_->backward_input({}, saved, weights_, grad_, true, kept);
  EXPECT_TRUE(saved.empty());
  // Cancellation: the gradient of a normalized input is a difference of like terms.
  EXPECT_LE(difference(back.at(0), expected.gradients[0]), 10 * tolerance(dtype_));
  const Tensors sums = {at::full({shape_.channels}, 0.5, input_.options()),
                        at::full({shape_.channels}, 0.5, input_.options())};
  layer_->backward_weight({}, kept, sums);
  EXPECT_LE(difference(sums[0].sub(0.5), expected.gradients[1]), 10 * tolerance(dtype_));
  EXPECT_LE(difference(sums[1].sub(0.5), expected.gradients[2]), 10 * tolerance(dtype_));
}

TEST_P(BatchNorm, EvaluationUsesTheBuffersAndLeavesThem) {
  const Tensors before = {buffers_[0].clone(), buffers_[1].clone()};
  const at::Tensor expected = at::batch_norm(input_, weights_[0], weights_[1], buffers_[0],
                                             buffers_[1], false, 0.1, 1e-5, false);
  Tensors saved;
  const at::Tensor value =
      layer_->forward({.training = false, .buffers = buffers_}, input_, weights_, saved);
  EXPECT_LE(difference(value, expected), tolerance(dtype_));
  EXPECT_TRUE(saved.empty());
  EXPECT_TRUE(same_bits(before[0], buffers_[0]));
  EXPECT_TRUE(same_bits(before[1], buffers_[1]));
}

INSTANTIATE_TEST_SUITE_P(All, BatchNorm,
                         ::testing::Combine(::testing::Values(NormShape{"small", 2, 3, 4, 5},
                                                              NormShape{"single", 1, 2, 3, 1},
                                                              NormShape{"pixels", 7, 4, 1, 1},
                                                              NormShape{"large", 3, 2, 70, 67}),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param).name) + "_" +
                                  dtype_name(std::get<1>(tested.param));
                         });

TEST(BatchNormLayer, GradientsAreDifferenceQuotients) {
  const LayerPtr layer = batch_norm2d("bn", 2);
  const at::Tensor input = random_tensor({3, 2, 2, 2}, at::kDouble, 1);
  const at::Tensor grad = random_tensor({3, 2, 2, 2}, at::kDouble, 2);
  const Tensors weights = {random_tensor({2}, at::kDouble, 3), random_tensor({2}, at::kDouble, 4)};
  const Tensors buffers = {at::zeros({2}, at::kDouble), at::ones({2}, at::kDouble)};
  const LayerContext context{.buffers = buffers};
  const auto value = [&](const at::Tensor& x) {
    Tensors saved;
    return layer->forward(context, x, weights, saved).mul(grad).sum().item<double>();
  };
  Tensors saved;
  Tensors kept;
  layer->forward(context, input, weights, saved);
  const at::Tensor back = layer->backward_input({}, saved, weights, grad, true, kept).at(0);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < input.numel(); ++i) {
    at::Tensor up = input.clone();
    up.data_ptr<double>()[i] += kStep;
    at::Tensor down = input.clone();
    down.data_ptr<double>()[i] -= kStep;
    EXPECT_NEAR(back.data_ptr<double>()[i], (value(up) - value(down)) / (2 * kStep), 1e-8) << i;
  }
}

TEST(BatchNormLayer, OneValueAChannelIsRefused) {
  const Tensors buffers = {at::zeros({2}), at::ones({2})};
  const Tensors weights = {at::ones({2}), at::zeros({2})};
  Tensors saved;
  EXPECT_THAT(message_of([&] {
                batch_norm2d("bn3", 2)->forward({.buffers = buffers}, at::zeros({1, 2, 1, 1}),
                                                weights, saved);
              }),
              AllOf(HasSubstr("\"bn3\""), HasSubstr("fewer microbatches")));
}

TEST(BatchNormLayer, NoSamplesMoveNothing) {
  const Tensors buffers = {at::full({2}, 0.25), at::ones({2})};
  const Tensors weights = {at::ones({2}), at::zeros({2})};
  Tensors saved;
  Tensors kept;
  const LayerPtr layer = batch_norm2d("bn", 2);
  const at::Tensor out =
      layer->forward({.buffers = buffers}, at::zeros({0, 2, 3, 3}), weights, saved);
  EXPECT_EQ(out.size(0), 0);
  EXPECT_EQ(buffers[0][0].item<double>(), 0.25);
  EXPECT_EQ(layer->backward_input({}, saved, weights, out, true, kept).at(0).size(0), 0);
}

class DropoutLayer : public ::testing::Test {
 protected:
  at::Tensor forward(const LayerContext& context, const at::Tensor& input) {
    Tensors saved;
    at::Tensor out = layer_->forward(context, input, {}, saved);
    EXPECT_TRUE(saved.empty()) << "the backward draws again";
    return out;
  }
  LayerPtr layer_ = dropout("drop", 0.3);
  at::Tensor ones_ = at::ones({6, 3, 7}, at::kDouble);
  LayerContext context_{.seed = 4, .step = 11};
};

TEST_F(DropoutLayer, ZeroesAShareAndScalesTheRest) {
  const at::Tensor out = forward(context_, at::ones({100, 400}, at::kDouble));
  const double kept = out.gt(0).sum().item<double>() / 40000;
  EXPECT_NEAR(kept, 0.7, 4 * 0.46 / 200);  // four standard errors
  EXPECT_TRUE(out.eq(0).logical_or(out.sub(1 / 0.7).abs().lt(1e-12)).all().item<bool>());
  Tensors saved;
  EXPECT_TRUE(same_bits(dropout("d", 0.0)->forward(context_, ones_, {}, saved), ones_));
}

TEST_F(DropoutLayer, TheGradientFallsWhereTheInputFell) {
  const at::Tensor out = forward(context_, ones_);
  Tensors saved;
  Tensors kept;
  const at::Tensor grad = random_tensor({6, 3, 7}, at::kDouble, 1);
  const at::Tensor back = layer_->backward_input(context_, saved, {}, grad, true, kept).at(0);
  EXPECT_EQ(difference(back, grad.mul(out)), 0.0);  // a -0 may be a 0
  EXPECT_TRUE(layer_->backward_input(context_, saved, {}, grad, false, kept).empty());
}

// What a sample loses depends on its place in the minibatch alone, however that is cut.
TEST_F(DropoutLayer, EveryCutDrawsAlike) {
  const at::Tensor whole = forward(context_, ones_);
  for (int64_t cut = 1; cut < 6; ++cut) {
    LayerContext high = context_;
    high.first_place = cut;
    EXPECT_TRUE(same_bits(forward(context_, ones_.narrow(0, 0, cut)), whole.narrow(0, 0, cut)));
    EXPECT_TRUE(
        same_bits(forward(high, ones_.narrow(0, cut, 6 - cut)), whole.narrow(0, cut, 6 - cut)));
  }
}

TEST_F(DropoutLayer, StepSeedNameAndDtypeCount) {
  const at::Tensor whole = forward(context_, ones_);
  EXPECT_FALSE(same_bits(forward({.seed = 5, .step = 11}, ones_), whole));
  EXPECT_FALSE(same_bits(forward({.seed = 4, .step = 12}, ones_), whole));
  Tensors saved;
  EXPECT_FALSE(same_bits(dropout("other", 0.3)->forward(context_, ones_, {}, saved), whole));
  EXPECT_TRUE(same_bits(forward(context_, ones_.to(at::kFloat)).gt(0), whole.gt(0)));
  EXPECT_TRUE(same_bits(forward({.training = false}, ones_), ones_));
}

TEST(EmbeddingLayer, AgreesWithLibtorchAndAddsInOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const LayerPtr layer = embedding("e", 5, 3, dtype);
    EXPECT_EQ(layer->output({{{4}, at::kLong}}), (TensorSpec{{4, 3}, dtype}));
    const at::Tensor input =
        at::tensor({0, 4, 4, 1, 2, 4, 0, 0}, at::TensorOptions().dtype(at::kLong)).view({2, 4});
    const at::Tensor weight = random_tensor({5, 3}, dtype, 1);
    const at::Tensor grad = random_tensor({2, 4, 3}, dtype, 2);
    const Differentiated expected =
        by_autograd([&](const Tensors& t) { return at::embedding(t[0], input); }, {weight}, grad);
    Tensors saved;
    Tensors kept;
    EXPECT_TRUE(same_bits(layer->forward({}, input, {weight}, saved), expected.value));
    EXPECT_TRUE(layer->backward_input({}, saved, {weight}, grad, false, kept).empty());
    const Tensors sums = {at::full({5, 3}, 0.5, weight.options())};
    layer->backward_weight({}, kept, sums);
    EXPECT_LE(difference(sums[0].sub(0.5), expected.gradients[0]), 4 * tolerance(dtype));
  }
}

TEST(EmbeddingLayer, ValuesBeyondTheTableAreRefused) {
  for (const int64_t value : {-1, 5}) {
    Tensors saved;
    EXPECT_THAT(message_of([&] {
                  embedding("tokens", 5, 3)
                      ->forward({}, at::full({1, 2}, value, at::kLong), {at::zeros({5, 3})}, saved);
                }),
                AllOf(HasSubstr("\"tokens\""), HasSubstr("[0, 5)"),
                      HasSubstr("found " + std::to_string(value))));
  }
}

TEST(AddLayer, SumsAndHandsItsGradientToEachInput) {
  const Tensors inputs = {random_tensor({2, 3}, at::kFloat, 1),
                          random_tensor({2, 3}, at::kFloat, 2),
                          random_tensor({2, 3}, at::kFloat, 3)};
  const LayerPtr layer = add("a");
  Tensors saved;
  Tensors kept;
  EXPECT_TRUE(
      same_bits(layer->forward({}, inputs, {}, saved), inputs[0].add(inputs[1]).add(inputs[2])));
  const at::Tensor grad = random_tensor({2, 3}, at::kFloat, 4);
  const Tensors back = layer->backward_input({}, saved, {}, grad, true, kept);
  ASSERT_EQ(back.size(), 3U);
  for (const at::Tensor& one : back) {
    EXPECT_EQ(one.data_ptr(), grad.data_ptr());
  }
  EXPECT_TRUE(saved.empty());
}

}  // namespace
}  // namespace millrace::testing
