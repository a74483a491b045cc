// AccumAdam: Adam for small batches, whose second moment is noisy. Every update moves the weights
// by moments that know its own gradient, but the moments that are kept change only every k updates
// (`accumulate`), by the mean gradient of those. With t the updates that the parameter has had,
// this one included, for each element:
//   M = m + (1 - beta1) g,  V = v + (1 - beta2) g g,  c = ceil(t / k),
//   delta = -(lr / (1 - beta1^c)) M / (sqrt(V) / sqrt(1 - beta2^c) + epsilon),
//   accumulated += g / k,  and after every k-th update, a being accumulated:
//   m <- beta1 (m + (1 - beta1) a),  v <- beta2 (v + (1 - beta2) a a),  a <- 0.
// k = 1 is adam bit for bit. Weight decay is added to g, as in adam.
//
// Source: Wang et al., "From Promise to Practice: Realizing High-performance Decentralized
// Training", arXiv:2410.11998, and its public code.
#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/runtime/optimizer.h"

namespace millrace::builtin_optimizers {
namespace {

template <typename T>
struct Factors {
  T samples;
  T clip;
  T beta1;
  T rest1;  // 1 - beta1
  T beta2;
  T rest2;
  T root_correction2;  // sqrt(1 - beta2^c)
  T epsilon;
  T step_size;  // lr / (1 - beta1^c)
  T weight_decay;
  T accumulate;
  T kept;  // 1; 0 for the delta alone
};

// `target` may equal `current`, so only the other pointers are declared free of aliases.
template <typename T>
void update_range(const T* current, T* target, T* __restrict gradient, const T* __restrict m,
                  const T* __restrict v, T* __restrict accumulated, int64_t count,
                  const Factors<T>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const T w = current[i];
    const T g = gradient[i] / f.samples * f.clip + f.weight_decay * w;
    gradient[i] = 0;
    accumulated[i] += g / f.accumulate;
    const T first = m[i] + f.rest1 * g;
    const T second = v[i] + f.rest2 * g * g;
    const T scaled = first / (std::sqrt(second) / f.root_correction2 + f.epsilon);
    const T delta = -(f.step_size * scaled);
    target[i] = f.kept * w + delta;
  }
}

template <typename T>
void change_moments(T* __restrict m, T* __restrict v, T* __restrict accumulated, int64_t count,
                    const Factors<T>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const T a = accumulated[i];
    accumulated[i] = 0;
    m[i] = f.beta1 * (m[i] + f.rest1 * a);
    v[i] = f.beta2 * (v[i] + f.rest2 * a * a);
  }
}

class AccumAdam final : public Optimizer {
 public:
  AccumAdam(const TrainConfig& config, FlatLayout layout)
      : Optimizer(std::move(layout)), config_(config) {
    m_ = add_state("m");
    v_ = add_state("v");
    accumulated_ = add_state("accumulated");
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
    const double accumulate = config_.accumulate.value();
    const double changes = std::ceil(age / accumulate);
    const Factors<T> f{.samples = static_cast<T>(factors.samples),
                       .clip = static_cast<T>(factors.clip),
                       .beta1 = static_cast<T>(beta1),
                       .rest1 = static_cast<T>(1 - beta1),
                       .beta2 = static_cast<T>(beta2),
                       .rest2 = static_cast<T>(1 - beta2),
                       .root_correction2 = static_cast<T>(std::sqrt(1 - std::pow(beta2, changes))),
                       .epsilon = static_cast<T>(config_.epsilon.value()),
                       .step_size = static_cast<T>(factors.lr / (1 - std::pow(beta1, changes))),
                       .weight_decay = static_cast<T>(config_.weight_decay.value()),
                       .accumulate = static_cast<T>(accumulate),
                       .kept = static_cast<T>(factors.delta_only ? 0 : 1)};
    const int64_t begin = layout().offsets[index];
    const int64_t count = range_end(index) - begin;
    T* m = m_.data_ptr<T>() + begin;
    T* v = v_.data_ptr<T>() + begin;
    T* accumulated = accumulated_.data_ptr<T>() + begin;
    update_range<T>(current.data_ptr<T>() + begin, target.data_ptr<T>() + begin,
                    gradient_sum.data_ptr<T>() + begin, m, v, accumulated, count, f);
    if (std::fmod(age, accumulate) == 0) {
      change_moments<T>(m, v, accumulated, count, f);
    }
  }

  TrainConfig config_;
  at::Tensor m_;
  at::Tensor v_;
  at::Tensor accumulated_;
};

}  // namespace

std::unique_ptr<Optimizer> accum_adam(const TrainConfig& config, FlatLayout layout) {
  return std::make_unique<AccumAdam>(config, std::move(layout));
}

}  // namespace millrace::builtin_optimizers
