#include "millrace/runtime/optimizer.h"

#include <ATen/ops/zeros.h>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// `target` may equal `current`, so only the other pointers are declared free of aliases.
template <typename T>
void update_all(const T* current, T* target, T* __restrict gradient, T* __restrict velocity,
                int64_t count, T samples, T lr, T momentum, T weight_decay) {
  for (int64_t i = 0; i < count; ++i) {
    const T mean = gradient[i] / samples + weight_decay * current[i];
    gradient[i] = 0;
    const T v = momentum * velocity[i] + mean;
    velocity[i] = v;
    const T delta = -lr * v;
    target[i] = current[i] + delta;
  }
}

template <typename T>
void update_all_plain(const T* current, T* target, T* __restrict gradient, int64_t count, T samples,
                      T lr, T weight_decay) {
  for (int64_t i = 0; i < count; ++i) {
    const T mean = gradient[i] / samples + weight_decay * current[i];
    gradient[i] = 0;
    const T delta = -lr * mean;
    target[i] = current[i] + delta;
  }
}

template <typename T>
void update_typed(const SgdConfig& config, const at::Tensor& current, at::Tensor& target,
                  at::Tensor& gradient_sum, at::Tensor& velocity, double samples) {
  const int64_t count = current.numel();
  if (velocity.defined()) {
    update_all<T>(current.data_ptr<T>(), target.data_ptr<T>(), gradient_sum.data_ptr<T>(),
                  velocity.data_ptr<T>(), count, static_cast<T>(samples), static_cast<T>(config.lr),
                  static_cast<T>(config.momentum), static_cast<T>(config.weight_decay));
  } else {
    update_all_plain<T>(current.data_ptr<T>(), target.data_ptr<T>(), gradient_sum.data_ptr<T>(),
                        count, static_cast<T>(samples), static_cast<T>(config.lr),
                        static_cast<T>(config.weight_decay));
  }
}

}  // namespace

Sgd::Sgd(const SgdConfig& config, int64_t flat_elements, at::ScalarType dtype) : config_(config) {
  MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble, "SGD takes float32 or float64");
  if (config.momentum != 0.0) {
    velocity_ = at::zeros({flat_elements}, dtype);
  }
}

void Sgd::update(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
                 double samples) {
  MILLRACE_CHECK(samples > 0, "an update needs samples");
  MILLRACE_CHECK(current.numel() == target.numel() && current.numel() == gradient_sum.numel());
  if (current.scalar_type() == at::kDouble) {
    update_typed<double>(config_, current, target, gradient_sum, velocity_, samples);
  } else {
    update_typed<float>(config_, current, target, gradient_sum, velocity_, samples);
  }
}

}  // namespace millrace
