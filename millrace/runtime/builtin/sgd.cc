// SGD with momentum, as in libtorch (no dampening, no Nesterov):
//   g = gradient_sum / samples x clip + weight_decay w,  v = momentum v + g,  w -= lr v.
// Without momentum v is g itself and nothing is kept.
#include <utility>

#include "millrace/base/error.h"
#include "millrace/runtime/optimizer.h"

namespace millrace::builtin_optimizers {
namespace {

// `target` may equal `current`, so only the other pointers are declared free of aliases. `kept`: 1,
// or 0 for the delta alone.
template <typename T>
void update_with_momentum(const T* current, T* target, T* __restrict gradient,
                          T* __restrict velocity, int64_t count, T samples, T clip, T lr,
                          T momentum, T weight_decay, T kept) {
  for (int64_t i = 0; i < count; ++i) {
    const T g = gradient[i] / samples * clip + weight_decay * current[i];
    gradient[i] = 0;
    const T v = momentum * velocity[i] + g;
    velocity[i] = v;
    const T delta = -lr * v;
    target[i] = kept * current[i] + delta;
  }
}

template <typename T>
void update_plain(const T* current, T* target, T* __restrict gradient, int64_t count, T samples,
                  T clip, T lr, T weight_decay, T kept) {
  for (int64_t i = 0; i < count; ++i) {
    const T g = gradient[i] / samples * clip + weight_decay * current[i];
    gradient[i] = 0;
    const T delta = -lr * g;
    target[i] = kept * current[i] + delta;
  }
}

class Sgd final : public Optimizer {
 public:
  Sgd(const TrainConfig& config, FlatLayout layout)
      : Optimizer(std::move(layout)),
        momentum_(config.momentum.value()),
        weight_decay_(config.weight_decay.value()) {
    if (momentum_ != 0.0) {
      velocity_ = add_state("velocity");
    }
  }

  void update(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
              const UpdateFactors& factors) override {
    MILLRACE_CHECK(factors.samples > 0, "an update needs samples");
    MILLRACE_CHECK(current.numel() == target.numel() && current.numel() == gradient_sum.numel());
    if (layout().dtype == at::kDouble) {
      update_typed<double>(current, target, gradient_sum, factors);
    } else {
      update_typed<float>(current, target, gradient_sum, factors);
    }
  }

 private:
  template <typename T>
  void update_typed(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
                    const UpdateFactors& factors) {
    const int64_t count = current.numel();
    const T samples = static_cast<T>(factors.samples);
    const T clip = static_cast<T>(factors.clip);
    const T lr = static_cast<T>(factors.lr);
    const T weight_decay = static_cast<T>(weight_decay_);
    const T kept = factors.delta_only ? 0 : 1;
    if (velocity_.defined()) {
      update_with_momentum<T>(current.data_ptr<T>(), target.data_ptr<T>(),
                              gradient_sum.data_ptr<T>(), velocity_.data_ptr<T>(), count, samples,
                              clip, lr, static_cast<T>(momentum_), weight_decay, kept);
    } else {
      update_plain<T>(current.data_ptr<T>(), target.data_ptr<T>(), gradient_sum.data_ptr<T>(),
                      count, samples, clip, lr, weight_decay, kept);
    }
  }

  double momentum_;
  double weight_decay_;
  at::Tensor velocity_;
};

}  // namespace

std::unique_ptr<Optimizer> sgd(const TrainConfig& config, FlatLayout layout) {
  return std::make_unique<Sgd>(config, std::move(layout));
}

}  // namespace millrace::builtin_optimizers
