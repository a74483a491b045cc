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
// Focal loss of "Focal Loss for Dense Object Detection" (Lin et al., ICCV'17), section 3, one class
// against all others each: with p = sigmoid(x), -alpha (1-p)^gamma log p of the target's class and
// -(1-alpha) p^gamma log(1-p) of the others, summed over classes. Output [B, C]; target int64 [B]
// in [0, C], where C is "none of them" (background). `correct` counts a sample whose largest logit
// is the target's and above 0, or, for background, is not above 0. alpha in [0, 1], gamma >= 0,
// else Error(kInvalidArgument).
std::unique_ptr<Loss> focal_loss(double alpha = 0.25, double gamma = 2);
// 0.5 * sum of squared differences of a sample; output and target of the same shape.
std::unique_ptr<Loss> half_squared_error();

}  // namespace millrace
