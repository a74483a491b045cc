// The fused focal loss against the formula composed of libtorch's operations, in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/model/loss.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor composed(const at::Tensor& logits, const at::Tensor& target, double alpha,
                    double gamma) {
  // The last column stands for "none of them" and is no class.
  const at::Tensor own =
      at::one_hot(target, logits.size(1) + 1).narrow(1, 0, logits.size(1)).to(at::kBool);
  const at::Tensor p = at::sigmoid(logits);
  const at::Tensor hit = (1 - p).pow(gamma) * at::log_sigmoid(logits) * -alpha;
  const at::Tensor miss = p.pow(gamma) * at::log_sigmoid(-logits) * -(1 - alpha);
  return at::where(own, hit, miss).sum();
}

at::Tensor targets(int64_t samples, int64_t classes) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < samples; ++i) {
    values.push_back((i * 7 + i / 3) % (classes + 1));
  }
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

// Blocks that end within a sample, samples longer than a block, and none at all.
TEST(FocalLoss, AgreesWithTheComposedFormula) {
  for (const auto& [samples, classes] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {7, 5}, {3000, 11}, {1024, 8}, {3, 20000}}) {
    for (const auto& [alpha, gamma] :
         std::vector<std::pair<double, double>>{{0.25, 2}, {0.5, 0}, {1, 1.5}, {0, 5}}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        const at::Tensor logits =
            random_tensor({samples, classes}, at::kDouble, 3).mul(4).to(dtype);
        const at::Tensor target = targets(samples, classes);
        const Differentiated expected =
            by_autograd([&, alpha = alpha, gamma = gamma](
                            const Tensors& t) { return composed(t[0], target, alpha, gamma); },
                        {logits.to(at::kDouble)}, at::full({}, 1.0, at::kDouble));
        at::Tensor gradient;
        const std::unique_ptr<Loss> loss = focal_loss(alpha, gamma);
        const LossSums sums = loss->evaluate(logits, target, &gradient);
        const double near = dtype == at::kFloat ? 1e-6 : 1e-12;
        const double whole = expected.value.item<double>();
        EXPECT_NEAR(sums.loss, whole, near * std::max(1.0, whole)) << samples << " x " << classes;
        EXPECT_LE((gradient.to(at::kDouble) - expected.gradients[0]).abs().max().item<double>(),
                  near)
            << samples << " x " << classes << ", alpha " << alpha << ", gamma " << gamma;
        EXPECT_EQ(loss->evaluate(logits, target, nullptr).loss, sums.loss);
      }
    }
  }
  EXPECT_EQ(focal_loss()->evaluate(at::zeros({0, 3}), targets(0, 3), nullptr).samples, 0);
}

TEST(FocalLoss, IsFiniteAndRightFarOut) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = at::tensor({100.0, -100.0, 100.0, -100.0}).view({2, 2}).to(dtype);
    at::Tensor gradient;
    // The first sample is sure and wrong in both classes, the second sure and right.
    const LossSums sums = focal_loss()->evaluate(
        logits, at::tensor({1, 0}, at::TensorOptions().dtype(at::kLong)), &gradient);
    EXPECT_NEAR(sums.loss, 0.75 * 100 + 0.25 * 100, 1e-5);
    const at::Tensor due = at::tensor({0.75, -0.25, 0.0, 0.0}, at::kDouble).view({2, 2});
    EXPECT_LE((gradient.to(at::kDouble) - due).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(sums.correct, 1);
  }
}

TEST(FocalLoss, BackgroundIsRightWhereNoLogitIsAboveZero) {
  const at::Tensor logits = at::tensor({-1.0, -2.0, 3.0, 1.0, -1.0, -1.0}).view({3, 2});
  const auto count = [&](const std::vector<int64_t>& values) {
    return focal_loss()
        ->evaluate(logits, at::tensor(values, at::TensorOptions().dtype(at::kLong)), nullptr)
        .correct;
  };
  EXPECT_EQ(count({2, 0, 2}), 3);
  EXPECT_EQ(count({0, 1, 1}), 0);
}

TEST(FocalLoss, RefusesWhatItCannotMeet) {
  EXPECT_THAT(message_of([] { focal_loss(1.5, 2); }), HasSubstr("alpha in [0, 1]"));
  EXPECT_THAT(message_of([] { focal_loss(0.5, -1); }), HasSubstr("gamma"));
  EXPECT_THAT(message_of([] {
                focal_loss()->evaluate(at::zeros({1, 3}),
                                       at::tensor({4}, at::TensorOptions().dtype(at::kLong)),
                                       nullptr);
              }),
              AllOf(HasSubstr("[0, 3]"), HasSubstr("4")));
  EXPECT_THAT(message_of([] {
                builtin_model("mlp", R"({"loss": "focl"})", {{4}, at::kFloat}, 3);
              }),
              HasSubstr("did you mean `focal`?"));
  EXPECT_STREQ(builtin_model("mlp", R"({"loss": "focal"})", {{4}, at::kFloat}, 3).loss->kind(),
               "focal");
}

}  // namespace
}  // namespace millrace::testing
