// The optimizer's update of one stage: SGD with momentum and weight decay, fused over the flat
// buffer.
//
// One object a rank and stage, used from that rank's thread. Its state is keyed like the weights,
// so a checkpoint stores it per parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace millrace {

struct SgdConfig {
  double lr = 0.05;
  double momentum = 0.0;
  double weight_decay = 0.0;
};

class Sgd {
 public:
  // `flat_elements` of dtype float32 or float64.
  Sgd(const SgdConfig& config, int64_t flat_elements, at::ScalarType dtype);

  // In one pass over the buffers:
  //   g = gradient_sum / samples + weight_decay * current
  //   v = momentum * v + g,  delta = -lr * v,  target = current + delta,  gradient_sum = 0.
  // The delta is rounded before it is added: two programs that agree on v agree on the weights bit
  // for bit. `target` may be `current` itself. `samples` are those of the whole update, over all
  // replicas and microbatches: the only division there is.
  void update(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
              double samples);

  // Momentum's velocity, flat like the weights; undefined without momentum.
  at::Tensor& velocity() { return velocity_; }
  const at::Tensor& velocity() const { return velocity_; }

 private:
  SgdConfig config_;
  at::Tensor velocity_;
};

}  // namespace millrace
