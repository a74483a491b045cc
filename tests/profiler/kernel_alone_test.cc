#include "millrace/profiler/internal/kernel_alone.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "millrace/profiler/internal/kernel_recorder.h"

namespace millrace::internal {
namespace {

constexpr double kBudget = 0.001;

// The recorded calls of `work`, by operator name.
std::map<std::string, OperatorCall> calls_of(const std::function<void()>& work) {
  KernelRecorder recorder;
  recorder.begin_step();
  work();
  recorder.end_step();
  std::map<std::string, OperatorCall> calls;
  for (const RecordedRow& one : recorder.rows()) {
    if (one.row.kind == KernelRowKind::kOperator) {
      calls.emplace(one.row.name, one.call);
    }
  }
  return calls;
}

void expect_time(const std::optional<double>& seconds, const std::string& name) {
  ASSERT_TRUE(seconds.has_value()) << name;
  EXPECT_TRUE(std::isfinite(*seconds)) << name;
  EXPECT_GT(*seconds, 0) << name;
  EXPECT_LT(*seconds, 1) << name;
}

TEST(KernelAlone, CallsProductsConvolutionsListsIndicesAndInPlaceAgain) {
  const auto calls = calls_of([] {
    const at::Tensor x = at::ones({4, 6});
    at::addmm(at::ones({5}), x, at::ones({5, 6}).t());
    at::convolution(at::ones({2, 3, 8, 8}), at::ones({5, 3, 3, 3}), {}, {1, 1}, {0, 0}, {1, 1},
                    false, {0, 0}, 1);
    at::cat({x, x}, 1);
    at::embedding(at::ones({7, 3}), at::ones({2, 2}, at::kLong));
    at::ones({4, 6}).mul_(x);
    at::ones({1, 6}).expand({4, 6}).add(x);
  });
  for (const char* name : {"aten::addmm", "aten::convolution", "aten::cat", "aten::embedding",
                           "aten::mul_", "aten::add"}) {
    ASSERT_TRUE(calls.contains(name)) << name;
    expect_time(time_alone(calls.at(name), kBudget), name);
  }
}

TEST(KernelAlone, WhatCannotBeCalledAgainHasNoTime) {
  EXPECT_FALSE(time_alone(OperatorCall{"aten::no_such_operator", "", {}, {}}, kBudget));
  // Shapes that do not fit.
  const TensorShape wide{true, true, {2, 3}, {3, 1}, at::kFloat};
  EXPECT_FALSE(time_alone(OperatorCall{"aten::mm", "", {wide, wide}, {}}, kBudget));
}

TEST(KernelAlone, AConvolutionRunsInOneDnnsOwnLayout) {
  if (!at::globalContext().userEnabledMkldnn() || !at::Context::hasMKLDNN()) {
    GTEST_SKIP() << "libtorch without oneDNN";
  }
  const auto calls = calls_of([] {
    at::mkldnn_convolution(at::ones({2, 16, 8, 8}), at::ones({16, 16, 3, 3}), at::ones({16}),
                           {1, 1}, {1, 1}, {1, 1}, 1);
  });
  expect_time(time_blocked(calls.at("aten::mkldnn_convolution"), kBudget), "blocked");
  const auto others = calls_of([] { at::exp(at::ones({3})); });
  EXPECT_FALSE(time_blocked(others.at("aten::exp"), kBudget));
}

}  // namespace
}  // namespace millrace::internal
