// Each native layer against libtorch's autograd, whole and by halves.
#include "millrace/model/layers.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  std::string name;
  std::function<LayerPtr()> make;
  std::vector<int64_t> sample_shape;
  Function reference;  // leaves: input, then the parameters
};

Case linear_case(int64_t in, int64_t out, bool bias) {
  return {"linear" + std::to_string(in) + "to" + std::to_string(out) + (bias ? "" : "NoBias"),
          [=] { return linear("l", in, out, bias); },
          {in},
          [=](const Tensors& t) {
            return bias ? at::linear(t[0], t[1], t[2]) : at::linear(t[0], t[1]);
          }};
}

Case conv_case(int64_t in, int64_t out, int64_t k, int64_t padding, int64_t stride, int64_t height,
               int64_t width) {
  return {"conv" + std::to_string(in) + "to" + std::to_string(out) + "k" + std::to_string(k) + "p" +
              std::to_string(padding) + "s" + std::to_string(stride),
          [=] { return conv2d("l", in, out, k, padding, stride); },
          {in, height, width},
          [=](const Tensors& t) { return at::conv2d(t[0], t[1], t[2], stride, padding); }};
}

Case pool_case(int64_t size, int64_t channels, int64_t height, int64_t width) {
  return {
      "pool" + std::to_string(size) + "on" + std::to_string(height) + "x" + std::to_string(width),
      [=] { return max_pool2d("l", size); },
      {channels, height, width},
      [=](const Tensors& t) {
        return at::max_pool2d(t[0], {size, size});
      }};
}

Case layer_norm_case(const std::vector<int64_t>& shape) {
  const int64_t width = shape.back();
  return {"layerNorm" + std::to_string(shape.size()) + "d", [=] { return layer_norm("l", width); },
          shape, [=](const Tensors& t) { return at::layer_norm(t[0], {width}, t[1], t[2]); }};
}

// Attention in the words of the paper, a head at a time.
Case attention_case(int64_t length, int64_t width, int64_t heads) {
  return {"attention" + std::to_string(heads) + "headsOf" + std::to_string(width) + "x" +
              std::to_string(length),
          [=] { return attention("l", width, heads); },
          {length, 3 * width},
          [=](const Tensors& t) {
            const int64_t d = width / heads;
            const at::Tensor ahead = at::ones({length, length}, at::kBool).triu(1);
            Tensors outs;
            for (int64_t h = 0; h < heads; ++h) {
              const auto part = [&](int64_t which) {
                return t[0].narrow(2, which * width + h * d, d);
              };
              const at::Tensor scores = part(0).matmul(part(1).transpose(1, 2)).div(std::sqrt(d));
              const at::Tensor shares =
                  scores.masked_fill(ahead, -std::numeric_limits<double>::infinity()).softmax(2);
              outs.push_back(shares.matmul(part(2)));
            }
            return at::stack(outs, 2).flatten(2);
          }};
}

// libtorch's has a second bias, here zero.
Case lstm_case(int64_t length, int64_t in, int64_t hidden) {
  return {
      "lstm" + std::to_string(in) + "to" + std::to_string(hidden) + "x" + std::to_string(length),
      [=] { return lstm("l", in, hidden); },
      {length, in},
      [=](const Tensors& t) {
        const at::Tensor zeros = at::zeros({1, t[0].size(0), hidden}, t[0].options());
        return std::get<0>(at::lstm(
            t[0], {zeros, zeros}, {t[1], t[2], t[3], at::zeros({4 * hidden}, t[0].options())},
            /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0, /*train=*/true,
            /*bidirectional=*/false, /*batch_first=*/true));
      }};
}

std::vector<Case> cases() {
  return {
      linear_case(7, 5, true),
      linear_case(1, 1, true),
      linear_case(33, 17, false),
      linear_case(784, 64, true),
      {"relu", [] { return relu("l"); }, {3, 5}, [](const Tensors& t) { return at::relu(t[0]); }},
      {"tanh", [] { return tanh("l"); }, {11}, [](const Tensors& t) { return at::tanh(t[0]); }},
      {"flatten",
       [] { return flatten("l"); },
       {3, 2, 5},
       [](const Tensors& t) { return t[0].flatten(1); }},
      conv_case(1, 20, 5, 2, 1, 28, 28),
      conv_case(20, 50, 5, 2, 1, 14, 14),
      conv_case(3, 4, 3, 1, 2, 9, 7),
      conv_case(2, 3, 3, 0, 1, 3, 5),
      pool_case(2, 3, 8, 8),
      pool_case(2, 2, 7, 9),
      pool_case(2, 1, 5, 3),
      pool_case(3, 2, 10, 11),
      pool_case(1, 2, 3, 3),
      pool_case(17, 1, 18, 35),
      {"convNoBias",
       [] { return conv2d("l", 3, 4, 3, 1, 2, /*bias=*/false); },
       {3, 9, 7},
       [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 2, 1); }},
      {"linearOnSequences",
       [] { return linear("l", 5, 7); },
       {4, 3, 5},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linearOnSequencesNoBias",
       [] { return linear("l", 5, 7, /*bias=*/false); },
       {6, 5},
       [](const Tensors& t) { return at::linear(t[0], t[1]); }},
      {"gelu", [] { return gelu("l"); }, {3, 21}, [](const Tensors& t) { return at::gelu(t[0]); }},
      {"positionEmbedding",
       [] { return position_embedding("l", 6, 5); },
       {4, 5},
       [](const Tensors& t) { return t[0].add(t[1].narrow(0, 0, 4)); }},
      attention_case(1, 4, 2),
      attention_case(7, 6, 1),
      attention_case(5, 12, 4),
      attention_case(40, 32, 2),
      lstm_case(1, 3, 5),
      lstm_case(6, 4, 3),
      lstm_case(5, 1, 1),
      lstm_case(20, 16, 24),
      layer_norm_case({7}),
      layer_norm_case({3, 33}),
      {"globalAveragePool",
       [] { return global_average_pool("l"); },
       {3, 4, 5},
       [](const Tensors& t) {
         return t[0].mean({2, 3});
       }},
  };
}

class LayerCase
    : public ::testing::TestWithParam<std::tuple<std::size_t, at::ScalarType, int64_t>> {
 protected:
  LayerCase() : case_(cases()[std::get<0>(GetParam())]) {
    std::vector<int64_t> shape = case_.sample_shape;
    shape.insert(shape.begin(), batch_);
    input_ = random_tensor(shape, dtype_, 1);
    for (const ParameterSpec& parameter : layer_->parameters()) {
      weights_.push_back(random_tensor(parameter.shape, dtype_, 10 + weights_.size()));
      sums_.push_back(at::full(parameter.shape, 0.5, weights_.back().options()));
    }
  }

  at::ScalarType dtype_ = std::get<1>(GetParam());
  int64_t batch_ = std::get<2>(GetParam());
  Case case_;
  LayerPtr layer_ = case_.make();
  LayerContext context_;
  at::Tensor input_;
  Tensors weights_;
  Tensors sums_;  // start at 0.5, so that overwriting is not taken for adding
};

TEST_P(LayerCase, ForwardAndBothHalvesAgreeWithAutograd) {
  const TensorSpec out = layer_->output({{case_.sample_shape, dtype_}});
  std::vector<int64_t> out_shape = out.sample_shape;
  out_shape.insert(out_shape.begin(), batch_);
  const at::Tensor grad = random_tensor(out_shape, dtype_, 2);
  Tensors leaves = {input_};
  leaves.insert(leaves.end(), weights_.begin(), weights_.end());
  const Differentiated expected = by_autograd(case_.reference, leaves, grad);
  const at::Tensor input_before = input_.clone();
  const at::Tensor grad_before = grad.clone();

  Tensors saved;
  const at::Tensor value = layer_->forward(context_, input_, weights_, saved);
  EXPECT_EQ(value.scalar_type(), out.dtype);
  EXPECT_LE(difference(value, expected.value), tolerance(dtype_));
  EXPECT_FALSE(value.requires_grad());

  Tensors kept;
  const Tensors input_gradients =
      layer_->backward_input(context_, saved, weights_, grad, true, kept);
  ASSERT_EQ(input_gradients.size(), 1U);
  EXPECT_TRUE(saved.empty());
  EXPECT_LE(difference(input_gradients[0], expected.gradients[0]), tolerance(dtype_));

  layer_->backward_weight(context_, kept, sums_);
  for (std::size_t p = 0; p < sums_.size(); ++p) {
    EXPECT_LE(difference(sums_[p].sub(0.5), expected.gradients[p + 1]), 4 * tolerance(dtype_))
        << layer_->parameters()[p].name;
  }
  EXPECT_TRUE(same_bits(input_, input_before)) << "the input was written to";
  EXPECT_TRUE(same_bits(grad, grad_before)) << "the gradient was written to";
}

// The runtime may run the weight half long after the input half, or at once: nothing differs, not
// even when the first half's other results are gone.
TEST_P(LayerCase, BothHalvesGiveTheSameBitsWheneverTheyRun) {
  Tensors saved;
  const at::Tensor value = layer_->forward(context_, input_, weights_, saved);
  const at::Tensor grad = random_tensor(value.sizes().vec(), dtype_, 4);
  Tensors saved_again = saved;
  Tensors sums_again;
  for (const at::Tensor& sum : sums_) {
    sums_again.push_back(sum.clone());
  }
  Tensors kept;
  const Tensors back = layer_->backward_input(context_, saved, weights_, grad, true, kept);
  layer_->backward_weight(context_, kept, sums_);
  // Weights that the weight half must not read.
  Tensors kept_again;
  const Tensors back_again =
      layer_->backward_input(context_, saved_again, weights_, grad, true, kept_again);
  for (at::Tensor& weight : weights_) {
    weight.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  layer_->backward_weight(context_, kept_again, sums_again);
  EXPECT_TRUE(same_bits(back.at(0), back_again.at(0)));
  for (std::size_t p = 0; p < sums_.size(); ++p) {
    EXPECT_TRUE(same_bits(sums_[p], sums_again[p])) << layer_->parameters()[p].name;
  }
}

TEST_P(LayerCase, WithoutInputGradientTheWeightHalfIsTheSame) {
  Tensors saved;
  const at::Tensor value = layer_->forward(context_, input_, weights_, saved);
  const at::Tensor grad = random_tensor(value.sizes().vec(), dtype_, 3);
  Tensors saved_again = saved;
  Tensors kept;
  EXPECT_EQ(layer_->backward_input(context_, saved, weights_, grad, true, kept).size(), 1U);
  Tensors kept_again;
  EXPECT_TRUE(
      layer_->backward_input(context_, saved_again, weights_, grad, false, kept_again).empty());
  Tensors sums_again;
  for (const at::Tensor& sum : sums_) {
    sums_again.push_back(sum.clone());
  }
  layer_->backward_weight(context_, kept, sums_);
  layer_->backward_weight(context_, kept_again, sums_again);
  for (std::size_t p = 0; p < sums_.size(); ++p) {
    EXPECT_TRUE(same_bits(sums_[p], sums_again[p]));
  }
}

TEST_P(LayerCase, EvaluationSavesNothingAndGivesTheSame) {
  Tensors saved;
  const at::Tensor trained = layer_->forward(context_, input_, weights_, saved);
  Tensors none;
  const at::Tensor evaluated =
      layer_->forward(LayerContext{.training = false}, input_, weights_, none);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(same_bits(trained, evaluated));
}

INSTANTIATE_TEST_SUITE_P(All, LayerCase,
                         ::testing::Combine(::testing::Range<std::size_t>(0, cases().size()),
                                            ::testing::Values(at::kFloat, at::kDouble),
                                            ::testing::Values(1, 2, 5)),
                         [](const auto& tested) {
                           return cases()[std::get<0>(tested.param)].name + "_" +
                                  dtype_name(std::get<1>(tested.param)) + "_batch" +
                                  std::to_string(std::get<2>(tested.param));
                         });

TEST(Layers, NoSamplesNoCrash) {
  for (const Case& one : cases()) {
    const LayerPtr layer = one.make();
    std::vector<int64_t> shape = one.sample_shape;
    shape.insert(shape.begin(), 0);
    const at::Tensor input = random_tensor(shape, at::kFloat, 1);
    Tensors weights;
    Tensors sums;
    for (const ParameterSpec& parameter : layer->parameters()) {
      weights.push_back(random_tensor(parameter.shape, at::kFloat, 1));
      sums.push_back(at::zeros(parameter.shape, weights.back().options()));
    }
    Tensors saved;
    Tensors kept;
    const at::Tensor value = layer->forward({}, input, weights, saved);
    EXPECT_EQ(value.size(0), 0) << one.name;
    const at::Tensor back = layer->backward_input({}, saved, weights, value, true, kept).at(0);
    EXPECT_EQ(back.sizes(), input.sizes()) << one.name;
    layer->backward_weight({}, kept, sums);
    for (const at::Tensor& sum : sums) {
      EXPECT_EQ(sum.abs().max().item<double>(), 0.0) << one.name;
    }
  }
}

TEST(Layers, PoolGivesTiesToTheSamePlaceAsLibtorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t size : {2, 3}) {
      // Two values only, so that nearly every window has equal largest ones; sides leave a rest.
      const at::Tensor input = random_tensor({2, 3, 13, 11}, dtype, 6).gt(0).to(dtype);
      const at::Tensor grad = random_tensor({2, 3, 13 / size, 11 / size}, dtype, 7);
      const Differentiated expected = by_autograd(
          [&](const Tensors& t) {
            return at::max_pool2d(t[0], {size, size});
          },
          {input}, grad);
      const LayerPtr layer = max_pool2d("p", size);
      Tensors saved;
      Tensors kept;
      EXPECT_TRUE(same_bits(layer->forward({}, input, {}, saved), expected.value));
      const at::Tensor back = layer->backward_input({}, saved, {}, grad, true, kept).at(0);
      EXPECT_EQ(difference(back, expected.gradients[0]), 0.0) << size;
      EXPECT_EQ(back.narrow(2, 13 / size * size, 13 % size).abs().sum().item<double>(), 0.0);
    }
  }
}

TEST(Layers, AnActivationSavesItsOutputAndNoCopy) {
  for (const LayerPtr& layer : {relu("r"), tanh("t")}) {
    Tensors saved;
    const at::Tensor value = layer->forward({}, random_tensor({4, 3}, at::kFloat, 1), {}, saved);
    ASSERT_EQ(saved.size(), 1U);
    EXPECT_EQ(saved[0].data_ptr(), value.data_ptr());
  }
}

TEST(Layers, ReluLetsNanThrough) {
  at::Tensor input = at::zeros({1, 2});
  input[0][0] = std::numeric_limits<double>::quiet_NaN();
  Tensors saved;
  EXPECT_TRUE(relu("r")->forward({}, input, {}, saved)[0][0].isnan().item<bool>());
}

TEST(Layers, RefusedShapesNameLayerExpectedAndFound) {
  const auto refusal = [](const LayerPtr& layer, TensorSpec found) {
    return message_of([&] { layer->output({std::move(found)}); });
  };
  EXPECT_THAT(refusal(linear("fc", 15, 4), {{16}}),
              AllOf(HasSubstr("\"fc\""), HasSubstr("float32 [15]"), HasSubstr("float32 [16]")));
  EXPECT_THAT(refusal(linear("fc", 12, 4), {{3, 2, 2}}), HasSubstr("flatten"));
  EXPECT_THAT(refusal(relu("r"), {{3}, at::kLong}),
              AllOf(HasSubstr("\"r\""), HasSubstr("float32 or float64"), HasSubstr("int64 [3]")));
  EXPECT_THAT(refusal(conv2d("c", 3, 4, 5), {{1, 28, 28}}),
              AllOf(HasSubstr("\"c\""), HasSubstr("[3, height, width]"), HasSubstr("[1, 28, 28]")));
  EXPECT_THAT(refusal(conv2d("c", 1, 4, 5), {{1, 4, 28}}), HasSubstr("at least 5"));
  EXPECT_THAT(refusal(max_pool2d("p", 2), {{8, 1, 4}}),
              AllOf(HasSubstr("\"p\""), HasSubstr("at least 2"), HasSubstr("[8, 1, 4]")));
  EXPECT_THAT(refusal(max_pool2d("p", 2), {{8}}), HasSubstr("[8]"));
  EXPECT_THAT(refusal(batch_norm2d("b", 3), {{4, 5, 5}}), HasSubstr("[3, height, width]"));
  EXPECT_THAT(refusal(layer_norm("n", 3), {{4, 5}}), HasSubstr("last dimension of 3"));
  EXPECT_THAT(refusal(global_average_pool("g"), {{4, 5}}), HasSubstr("[4, 5]"));
  EXPECT_THAT(refusal(embedding("e", 3, 4), {{4, 5}}), HasSubstr("expects int64"));
  EXPECT_THAT(refusal(position_embedding("p", 3, 4), {{4, 4}}),
              AllOf(HasSubstr("\"p\""), HasSubstr("[at most 3, 4]"), HasSubstr("[4, 4]")));
  EXPECT_THAT(refusal(attention("a", 4, 2), {{7, 4}}),
              AllOf(HasSubstr("\"a\""), HasSubstr("[length, 12]"), HasSubstr("[7, 4]")));
  EXPECT_THAT(refusal(lstm("r", 4, 2), {{7, 3}}),
              AllOf(HasSubstr("\"r\""), HasSubstr("[length, 4]"), HasSubstr("[7, 3]")));
}

TEST(Layers, RefusedSizes) {
  EXPECT_THAT(message_of([] { linear("fc", 0, 3); }), HasSubstr("\"fc\""));
  EXPECT_THAT(message_of([] { conv2d("c", 1, 1, 0); }), HasSubstr("\"c\""));
  EXPECT_THAT(message_of([] { conv2d("c", 1, 1, 3, -1); }), HasSubstr("padding -1"));
  EXPECT_THAT(message_of([] { max_pool2d("p", 0); }), HasSubstr("\"p\""));
  EXPECT_THAT(message_of([] { layer_norm("n", 0); }), HasSubstr("\"n\""));
  EXPECT_THAT(message_of([] { batch_norm2d("b", 0); }), HasSubstr("\"b\""));
  EXPECT_THAT(message_of([] { dropout("d", 1.0); }), HasSubstr("found 1"));
  EXPECT_THAT(message_of([] { dropout("d", -0.1); }), HasSubstr("[0, 1)"));
  EXPECT_THAT(message_of([] { embedding("e", 0, 3); }), HasSubstr("\"e\""));
  EXPECT_THAT(message_of([] { embedding("e", 3, 3, at::kLong); }), HasSubstr("int64"));
  EXPECT_THAT(message_of([] { position_embedding("p", 0, 3); }), HasSubstr("\"p\""));
  EXPECT_THAT(message_of([] { attention("a", 10, 3); }), HasSubstr("found 10 and 3"));
  EXPECT_THAT(message_of([] { lstm("r", 3, 0); }), HasSubstr("found 3 and 0"));
}

}  // namespace
}  // namespace millrace::testing
