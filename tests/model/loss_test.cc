#include "millrace/model/loss.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor labels(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

TEST(CrossEntropy, ClosedForms) {
  // Equal logits: log of the number of classes, gradient 1/C less the target's one.
  at::Tensor gradient;
  const LossSums even =
      cross_entropy()->evaluate(at::zeros({1, 4}, at::kDouble), labels({1}), &gradient);
  EXPECT_DOUBLE_EQ(even.loss, std::log(4.0));
  EXPECT_EQ(even.samples, 1);
  EXPECT_EQ(even.correct, 0);  // the first of equal ones counts, and that is class 0
  EXPECT_EQ(cross_entropy()->evaluate(at::zeros({1, 4}, at::kDouble), labels({0}), nullptr).correct,
            1);
  EXPECT_LE(difference(gradient, at::tensor({0.25, -0.75, 0.25, 0.25}, at::kDouble).view({1, 4})),
            1e-15);
  // Logits beyond exp()'s range.
  const at::Tensor huge = at::tensor({1000.0, -1000.0, 0.0, 1000.0}, at::kDouble).view({2, 2});
  const LossSums sums = cross_entropy()->evaluate(huge, labels({0, 0}), &gradient);
  EXPECT_DOUBLE_EQ(sums.loss, 1000.0);
  EXPECT_EQ(sums.correct, 1);
  EXPECT_LE(difference(gradient, at::tensor({0.0, 0.0, -1.0, 1.0}, at::kDouble).view({2, 2})),
            1e-15);
}

TEST(CrossEntropy, AgreesWithAutograd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = random_tensor({7, 5}, dtype, 1).mul(3);
    const at::Tensor target = labels({0, 4, 2, 2, 1, 3, 0});
    const Differentiated expected = by_autograd(
        [&](const Tensors& t) {
          return at::cross_entropy_loss(t[0], target, {}, at::Reduction::Sum);
        },
        {logits}, at::full({}, 1.0, logits.options()));
    at::Tensor gradient;
    const LossSums sums = cross_entropy()->evaluate(logits, target, &gradient);
    EXPECT_NEAR(sums.loss / expected.value.item<double>(), 1.0, tolerance(dtype));
    EXPECT_LE(difference(gradient, expected.gradients[0]), tolerance(dtype));
    EXPECT_EQ(sums.correct, logits.argmax(1).eq(target).sum().item<int64_t>());
    const LossSums without = cross_entropy()->evaluate(logits, target, nullptr);
    EXPECT_EQ(without.loss, sums.loss);
    EXPECT_EQ(without.correct, sums.correct);
  }
}

TEST(CrossEntropy, OfASequenceIsTheMeanOverPositions) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = random_tensor({3, 6, 5}, dtype, 9);
    const at::Tensor target =
        labels({0, 4, 2, 2, 1, 3, 0, 1, 2, 3, 4, 0, 1, 1, 1, 0, 4, 4}).view({3, 6});
    const Differentiated expected = by_autograd(
        [&](const Tensors& t) {
          return at::cross_entropy_loss(t[0].flatten(0, 1), target.flatten(), {},
                                        at::Reduction::Sum)
              .div(6);
        },
        {logits}, at::full({}, 1.0, logits.options()));
    at::Tensor gradient;
    const LossSums sums = cross_entropy()->evaluate(logits, target, &gradient);
    EXPECT_NEAR(sums.loss / expected.value.item<double>(), 1.0, tolerance(dtype));
    EXPECT_LE(difference(gradient, expected.gradients[0]), tolerance(dtype));
    EXPECT_EQ(sums.samples, 3);
    EXPECT_EQ(sums.correct, logits.argmax(2).eq(target).sum().item<int64_t>());
    // A sequence of one position is the plain loss, bit for bit.
    at::Tensor plain;
    at::Tensor single;
    const at::Tensor row = logits.select(1, 0).contiguous();
    const LossSums a = cross_entropy()->evaluate(row, target.select(1, 0), &plain);
    const LossSums b = cross_entropy()->evaluate(row.unsqueeze(1), target.narrow(1, 0, 1), &single);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_TRUE(same_bits(plain, single.squeeze(1)));
  }
}

TEST(CrossEntropy, PartsAddUp) {
  const at::Tensor logits = random_tensor({10, 3}, at::kDouble, 4);
  const at::Tensor target = labels({0, 1, 2, 0, 1, 2, 0, 1, 2, 0});
  const LossSums whole = cross_entropy()->evaluate(logits, target, nullptr);
  LossSums parts;
  int64_t begin = 0;
  for (const int64_t size : {3, 3, 2, 0, 2}) {
    const LossSums part = cross_entropy()->evaluate(logits.narrow(0, begin, size),
                                                    target.narrow(0, begin, size), nullptr);
    parts.loss += part.loss;
    parts.correct += part.correct;
    parts.samples += part.samples;
    begin += size;
  }
  EXPECT_NEAR(parts.loss, whole.loss, 1e-12);
  EXPECT_EQ(parts.correct, whole.correct);
  EXPECT_EQ(parts.samples, 10);
}

TEST(CrossEntropy, NanIsNeitherHiddenNorRight) {
  const LossSums sums = cross_entropy()->evaluate(
      at::full({1, 3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble), labels({0}),
      nullptr);
  EXPECT_TRUE(std::isnan(sums.loss));
  EXPECT_EQ(sums.correct, 0);
}

TEST(CrossEntropy, RefusesTargetsBeyondItsClasses) {
  for (const int64_t bad : {-1, 3}) {
    EXPECT_THAT(message_of([&] {
                  cross_entropy()->evaluate(at::zeros({1, 3}), labels({bad}), nullptr);
                }),
                AllOf(HasSubstr("[0, 3)"), HasSubstr(std::to_string(bad))));
  }
}

TEST(HalfSquaredError, ClosedForm) {
  const at::Tensor output = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2});
  const at::Tensor target = at::tensor({0.0, 0.0, 3.0, 6.0}, at::kDouble).view({2, 2});
  at::Tensor gradient;
  const LossSums sums = half_squared_error()->evaluate(output, target, &gradient);
  EXPECT_EQ(sums.loss, 4.5);
  EXPECT_EQ(sums.samples, 2);
  EXPECT_EQ(sums.correct, 0);
  EXPECT_TRUE(same_bits(gradient, output.sub(target)));
}

// Central differences of the loss, per element of the output.
TEST(Losses, GradientsAreDifferenceQuotients) {
  struct One {
    std::unique_ptr<Loss> loss;
    at::Tensor target;
  };
  std::vector<One> all;
  all.push_back({cross_entropy(), labels({2, 0})});
  all.push_back({half_squared_error(), random_tensor({2, 4}, at::kDouble, 8)});
  for (const One& one : all) {
    at::Tensor output = random_tensor({2, 4}, at::kDouble, 5);
    at::Tensor gradient;
    one.loss->evaluate(output, one.target, &gradient);
    double* x = output.data_ptr<double>();
    for (int64_t i = 0; i < output.numel(); ++i) {
      constexpr double kStep = 1e-5;
      const double old = x[i];
      x[i] = old + kStep;
      const double above = one.loss->evaluate(output, one.target, nullptr).loss;
      x[i] = old - kStep;
      const double below = one.loss->evaluate(output, one.target, nullptr).loss;
      x[i] = old;
      EXPECT_NEAR(gradient.data_ptr<double>()[i], (above - below) / (2 * kStep), 1e-8)
          << one.loss->kind();
    }
  }
}

TEST(Losses, NothingIsBroadcast) {
  EXPECT_THAT(message_of([] { half_squared_error()->check({{}}, {{1}}); }),
              AllOf(HasSubstr("float32 []"), HasSubstr("float32 [1]")));
  EXPECT_THAT(message_of([] {
                half_squared_error()->check({{3}}, {{3}, at::kDouble});
              }),
              AllOf(HasSubstr("float32 [3]"), HasSubstr("float64 [3]")));
  EXPECT_THAT(message_of([] {
                cross_entropy()->check({{10}}, {{1}, at::kLong});
              }),
              AllOf(HasSubstr("float32 [10]"), HasSubstr("int64 [1]")));
  EXPECT_THAT(message_of([] {
                cross_entropy()->check({{10, 2}}, {{}, at::kLong});
              }),
              HasSubstr("[10, 2]"));
  EXPECT_THAT(message_of([] {
                cross_entropy()->check({{7, 10}}, {{10}, at::kLong});
              }),
              AllOf(HasSubstr("float32 [7, 10]"), HasSubstr("int64 [10]")));
  EXPECT_THAT(message_of([] {
                cross_entropy()->check({{}}, {{}, at::kLong});
              }),
              HasSubstr("float32 []"));
  EXPECT_THAT(message_of([] {
                half_squared_error()->evaluate(at::zeros({4}), at::zeros({4, 1}), nullptr);
              }),
              HasSubstr("float32 [1]"));
  EXPECT_THAT(message_of([] {
                cross_entropy()->evaluate(at::zeros({2, 3}), labels({0}), nullptr);
              }),
              AllOf(HasSubstr("2 outputs"), HasSubstr("1 targets")));
}

}  // namespace
}  // namespace millrace::testing
