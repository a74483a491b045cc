// Loss functions: sums over samples, never means, so that any split of a batch adds up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "millrace/model/layer.h"

namespace millrace {

struct LossSums {
  double loss = 0;  // sum over samples
  // Classes told right: one a sample, or one a position of its sequence (Model::predictions());
  // 0 when the task has no classes.
  int64_t correct = 0;
  int64_t samples = 0;
};

class Loss {
 public:
  virtual ~Loss() = default;
  virtual const char* kind() const = 0;
  // Throws Error(kInvalidArgument) when the model's output cannot meet this loss and target: both
  // shapes shown
  // ([N] against [N, 1] is refused, never broadcast).
  virtual void check(const TensorSpec& output, const TensorSpec& target) const = 0;
  // `gradient`, when not null, receives the gradient of the loss sum with respect to `output`.
  virtual LossSums evaluate(const at::Tensor& output, const at::Tensor& target,
                            at::Tensor* gradient) const = 0;
};

// -log softmax(x)[target]; output [B, C], target int64 [B]. Of sequences, output [B, T, C] and
// target [B, T], a sample's loss is the mean over its positions.
std::unique_ptr<Loss> cross_entropy();
// 0.5 * sum of squared differences of a sample; output and target of the same shape.
std::unique_ptr<Loss> half_squared_error();

}  // namespace millrace
