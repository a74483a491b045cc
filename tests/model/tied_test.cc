// Parameters that two layers of a model share.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/model/layers.h"
#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 7;
constexpr int64_t kWidth = 5;

// An embedding whose table makes the scores too, with a layer of its own weights between.
Model tied_model(at::ScalarType dtype) {
  Model model;
  model.name = "tied";
  model.input = {{3}, at::kLong};
  model.target = {{3}, at::kLong};
  model.loss = cross_entropy();
  model.append(embedding("tokens", kRows, kWidth, dtype));
  model.append(linear("middle", kWidth, kWidth));
  model.append(tied_linear("projection", "tokens", kWidth, kRows));
  return model;
}

at::Tensor places(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).view({-1, 3});
}

const at::Tensor kInput = places({0, 4, 2, 2, 1, 6});
const at::Tensor kTarget = places({4, 2, 2, 1, 6, 0});

// The flat gradient sum of some microbatches, one after the other.
at::Tensor gradient_sum(const Stage& stage, const at::Tensor& flat, bool halves, int passes) {
  at::Tensor flat_sums = stage.new_flat();
  const WeightViews weights = stage.views(flat);
  const WeightViews sums = stage.views(flat_sums);
  for (int pass = 0; pass < passes; ++pass) {
    Stash stash;
    LossSums loss;
    stage.forward({}, kInput, weights, kTarget, stash, loss);
    if (halves) {
      stage.backward_input(stash, weights, {});
      stage.backward_weight({&stash}, sums);
    } else {
      stage.backward(stash, weights, {}, sums);
    }
  }
  return flat_sums;
}

TEST(TiedWeights, StandOnceInTheFlatBuffer) {
  const Model model = tied_model(at::kDouble);
  EXPECT_EQ(model.num_parameters(), kRows * kWidth + kWidth * kWidth + kWidth);
  const Stage stage(model, 0, 3);
  ASSERT_EQ(stage.slots().size(), 3U);
  EXPECT_EQ(stage.slots()[0].layer, "tokens");
  EXPECT_EQ(stage.slots()[1].layer, "middle");
  EXPECT_TRUE(stage.views(stage.new_flat())[2].empty());
}

TEST(TiedWeights, AWeightUsedTwiceCountsBothUses) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const Model model = tied_model(dtype);
    const Stage stage(model, 0, 3);
    at::Tensor flat = stage.new_flat();
    stage.initialize(flat, 3);
    const WeightViews weights = stage.views(flat);
    const Differentiated expected = by_autograd(
        [&](const Tensors& t) {
          const at::Tensor x = at::linear(at::embedding(t[0], kInput), t[1], t[2]);
          return at::cross_entropy_loss(at::linear(x, t[0]).flatten(0, 1), kTarget.flatten(), {},
                                        at::Reduction::Sum)
              .div(3);
        },
        {weights[0][0], weights[1][0], weights[1][1]}, at::full({}, 1.0, flat.options()));
    const at::Tensor whole = gradient_sum(stage, flat, false, 1);
    const WeightViews sums = stage.views(whole);
    EXPECT_LE(difference(sums[0][0], expected.gradients[0]), tolerance(dtype));
    EXPECT_LE(difference(sums[1][0], expected.gradients[1]), tolerance(dtype));
    EXPECT_LE(difference(sums[1][1], expected.gradients[2]), tolerance(dtype));
    // Halves add in the same order, over several microbatches too.
    EXPECT_TRUE(same_bits(gradient_sum(stage, flat, true, 3), gradient_sum(stage, flat, false, 3)));
  }
}

TEST(TiedWeights, ACutBetweenTheUsesIsRefused) {
  const Model model = tied_model(at::kFloat);
  for (const int cut : {1, 2}) {
    EXPECT_NO_THROW(Stage(model, 0, cut));
    EXPECT_THAT(message_of([&] { Stage(model, cut, 3); }, ErrorCode::kUnsupported),
                AllOf(HasSubstr("\"tokens\""), HasSubstr("\"projection\""),
                      HasSubstr("model.tied = false")));
  }
  EXPECT_NO_THROW(Stage(model, {0, 2}));
}

TEST(TiedWeights, TheOwnerMustStandBeforeAndFit) {
  const auto refusal = [](const std::string& owner, int64_t rows) {
    Model model = tied_model(at::kFloat);
    model.layers.back() = tied_linear("projection", owner, kWidth, rows);
    return message_of([&] { check_model(model); });
  };
  EXPECT_THAT(refusal("none", kRows), AllOf(HasSubstr("\"projection\""), HasSubstr("\"none\"")));
  EXPECT_THAT(refusal("projection", kRows), HasSubstr("no layer of this name before it"));
  EXPECT_THAT(refusal("tokens", kRows + 1), HasSubstr("[8, 5]"));
}

}  // namespace
}  // namespace millrace::testing
