#include "millrace/runtime/internal/adam.h"

#include <cmath>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

template <typename T>
struct Factors {
  T samples;
  T clip;
  T beta1;
  T rest1;  // 1 - beta1
  T beta2;
  T rest2;
  T root_correction2;  // sqrt(1 - beta2^t)
  T epsilon;
  T step_size;       // lr / (1 - beta1^t)
  T gradient_decay;  // weight_decay of adam, else 0
  T weight_lr;       // lr weight_decay of adamw, else 0
  T kept;            // 1; 0 for the delta alone
};

// `target` may equal `current`, so only the other pointers are declared free of aliases.
template <typename T>
void update_range(const T* current, T* target, T* __restrict gradient, T* __restrict m,
                  T* __restrict v, int64_t count, const Factors<T>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const T w = current[i];
    const T g = gradient[i] / f.samples * f.clip + f.gradient_decay * w;
    gradient[i] = 0;
    m[i] = f.beta1 * m[i] + f.rest1 * g;
    v[i] = f.beta2 * v[i] + f.rest2 * g * g;
    const T scaled = m[i] / (std::sqrt(v[i]) / f.root_correction2 + f.epsilon);
    const T delta = -(f.step_size * scaled + f.weight_lr * w);
    target[i] = f.kept * w + delta;
  }
}

class Adam final : public Optimizer {
 public:
  Adam(const TrainConfig& config, FlatLayout layout, AdamDecay decay)
      : Optimizer(std::move(layout)), config_(config), decay_(decay) {
    m_ = add_state("m");
    v_ = add_state("v");
    count_updates();
  }

  void update(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
              const UpdateFactors& factors) override {
    MILLRACE_CHECK(factors.samples > 0, "an update needs samples");
    MILLRACE_CHECK(current.numel() == target.numel() && current.numel() == gradient_sum.numel());
    for (std::size_t p = 0; p < layout().offsets.size(); ++p) {
      double& age = updates().data_ptr<double>()[p];
      age += 1;
      if (layout().dtype == at::kDouble) {
        update_parameter<double>(p, age, current, target, gradient_sum, factors);
      } else {
        update_parameter<float>(p, age, current, target, gradient_sum, factors);
      }
    }
  }

 private:
  template <typename T>
  void update_parameter(std::size_t index, double age, const at::Tensor& current,
                        at::Tensor& target, at::Tensor& gradient_sum,
                        const UpdateFactors& factors) {
    const double beta1 = config_.beta1.value();
    const double beta2 = config_.beta2.value();
    const double weight_decay = config_.weight_decay.value();
    const bool in_gradient = decay_ == AdamDecay::kInGradient;
    const Factors<T> f{.samples = static_cast<T>(factors.samples),
                       .clip = static_cast<T>(factors.clip),
                       .beta1 = static_cast<T>(beta1),
                       .rest1 = static_cast<T>(1 - beta1),
                       .beta2 = static_cast<T>(beta2),
                       .rest2 = static_cast<T>(1 - beta2),
                       .root_correction2 = static_cast<T>(std::sqrt(1 - std::pow(beta2, age))),
                       .epsilon = static_cast<T>(config_.epsilon.value()),
                       .step_size = static_cast<T>(factors.lr / (1 - std::pow(beta1, age))),
                       .gradient_decay = static_cast<T>(in_gradient ? weight_decay : 0),
                       .weight_lr = static_cast<T>(in_gradient ? 0 : factors.lr * weight_decay),
                       .kept = static_cast<T>(factors.delta_only ? 0 : 1)};
    const int64_t begin = layout().offsets[index];
    update_range<T>(current.data_ptr<T>() + begin, target.data_ptr<T>() + begin,
                    gradient_sum.data_ptr<T>() + begin, m_.data_ptr<T>() + begin,
                    v_.data_ptr<T>() + begin, range_end(index) - begin, f);
  }

  TrainConfig config_;
  AdamDecay decay_;
  at::Tensor m_;
  at::Tensor v_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const TrainConfig& config, FlatLayout layout,
                                     AdamDecay decay) {
  return std::make_unique<Adam>(config, std::move(layout), decay);
}

}  // namespace millrace::internal
