#include "millrace/model/loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <fmt/format.h>

#include <cmath>

#include "millrace/model/internal/loss_checks.h"
#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

using internal::check_batch_of;
using internal::is_float;
using internal::NativeGuard;
using internal::refuse;

// One row of logits in, its share of the sample's gradient out (unless null). All in double
// whatever T: a row has few elements, and the loss is then as exact as its input.
template <typename T>
LossSums cross_entropy_row(const T* row, int64_t classes, int64_t target, double share,
                           T* gradient) {
  int64_t best = 0;
  for (int64_t c = 1; c < classes; ++c) {
    best = row[c] > row[best] ? c : best;
  }
  const double top = row[best];
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) {
    sum += std::exp(static_cast<double>(row[c]) - top);
  }
  const double log_sum = top + std::log(sum);
  if (gradient != nullptr) {
    for (int64_t c = 0; c < classes; ++c) {
      const double p = std::exp(static_cast<double>(row[c]) - log_sum);
      gradient[c] = static_cast<T>((p - (c == target ? 1.0 : 0.0)) * share);
    }
  }
  const double loss = log_sum - static_cast<double>(row[target]);
  return {loss * share, best == target && !std::isnan(loss) ? 1 : 0, 0};
}

class CrossEntropy final : public Loss {
 public:
  const char* kind() const override { return "cross_entropy"; }

  void check(const TensorSpec& output, const TensorSpec& target) const override {
    // A target has all dimensions of the output but the classes.
    TensorSpec labels{output.sample_shape, at::kLong};
    const bool has_classes = !labels.sample_shape.empty() && output.sample_elements() >= 1;
    if (has_classes) {
      labels.sample_shape.pop_back();
    }
    if (!is_float(output.dtype) || !has_classes || labels.sample_shape.size() > 1 ||
        target != labels) {
      refuse(*this,
             "an output [classes] of float32 or float64 and a target int64 [], or of sequences "
             "[length, classes] and [length]",
             output, target);
    }
  }

  LossSums evaluate(const at::Tensor& output, const at::Tensor& target,
                    at::Tensor* gradient) const override {
    const NativeGuard guard;
    check_batch_of(*this, output, target);
    const at::Tensor logits = output.contiguous();
    const at::Tensor labels = target.contiguous();
    if (gradient != nullptr) {
      *gradient = at::empty(logits.sizes(), logits.options());
    }
    LossSums sums;
    internal::with_float_type(logits.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t classes = logits.size(logits.dim() - 1);
      const int64_t positions = logits.dim() == 3 ? logits.size(1) : 1;
      const double share = 1.0 / static_cast<double>(positions);
      const T* rows = logits.data_ptr<T>();
      const int64_t* label = labels.data_ptr<int64_t>();
      T* out = gradient == nullptr ? nullptr : gradient->data_ptr<T>();
      sums.samples = logits.size(0);
      for (int64_t i = 0; i < sums.samples * positions; ++i) {
        if (label[i] < 0 || label[i] >= classes) {
          throw Error(ErrorCode::kInvalidArgument,
                      fmt::format("the cross_entropy loss expects targets in [0, {}), found {}; "
                                  "the model needs as many outputs as the data has classes",
                                  classes, label[i]));
        }
        const LossSums one = cross_entropy_row(rows + i * classes, classes, label[i], share,
                                               out == nullptr ? nullptr : out + i * classes);
        sums.loss += one.loss;
        sums.correct += one.correct;
      }
    });
    return sums;
  }
};

class HalfSquaredError final : public Loss {
 public:
  const char* kind() const override { return "half_squared_error"; }

  void check(const TensorSpec& output, const TensorSpec& target) const override {
    if (!is_float(output.dtype) || output != target) {
      refuse(*this, "output and target of the same shape and the same floating dtype", output,
             target);
    }
  }

  LossSums evaluate(const at::Tensor& output, const at::Tensor& target,
                    at::Tensor* gradient) const override {
    const NativeGuard guard;
    check_batch_of(*this, output, target);
    const at::Tensor difference = at::sub(output, target).contiguous();
    LossSums sums;
    sums.samples = output.size(0);
    internal::with_float_type(difference.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* d = difference.data_ptr<T>();
      double squares = 0;
      for (int64_t i = 0; i < difference.numel(); ++i) {
        squares += static_cast<double>(d[i]) * static_cast<double>(d[i]);
      }
      sums.loss = 0.5 * squares;
    });
    if (gradient != nullptr) {
      *gradient = difference;
    }
    return sums;
  }
};

}  // namespace

std::unique_ptr<Loss> cross_entropy() { return std::make_unique<CrossEntropy>(); }
std::unique_ptr<Loss> half_squared_error() { return std::make_unique<HalfSquaredError>(); }

}  // namespace millrace
