#include "millrace/model/emulated.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

using internal::NativeGuard;

// Walks 0, 1, ..., size-1, 0, 1, ... without a division.
class Cycle {
 public:
  explicit Cycle(int64_t size) : size_(size) {}
  int64_t next() {
    const int64_t now = at_++;
    at_ = at_ == size_ ? 0 : at_;
    return now;
  }

 private:
  int64_t size_;
  int64_t at_ = 0;
};

class Emulated final : public Layer {
 public:
  Emulated(std::string name, int64_t outputs, int64_t parameters)
      : Layer(std::move(name)), outputs_(outputs), parameters_(parameters) {
    MILLRACE_CHECK(outputs >= 1 && parameters >= 0);
  }

  const char* kind() const override { return "emulated"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    for (const TensorSpec& input : inputs) {
      internal::expect_float(*this, input);
    }
    return {{outputs_}, inputs.at(0).dtype};
  }

  std::vector<ParameterSpec> parameters() const override {
    // Small enough that the product of many layers stays near 1.
    constexpr double kBound = 0.1;
    return parameters_ == 0 ? std::vector<ParameterSpec>{}
                            : std::vector<ParameterSpec>{{"weight", {parameters_}, kBound}};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    at::Tensor output = at::zeros({inputs[0].size(0), outputs_}, inputs[0].options());
    internal::with_float_type(output.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const std::vector<T> factors = factors_of<T>(weights);
      T* y = output.data_ptr<T>();
      for (const at::Tensor& input : inputs) {
        const T* x = input.data_ptr<T>();
        walk(input,
             [&](int64_t from, int64_t to, std::size_t i) { y[to] += x[from] * factors[i]; });
      }
    });
    if (context.training) {
      saved.assign(inputs.begin(), inputs.end());
    }
    return output;
  }

  Tensors backward_input(const LayerContext& /*context*/, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    Tensors result;
    if (need_input_gradient) {
      internal::with_float_type(grad.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        const std::vector<T> factors = factors_of<T>(weights);
        const T* g = grad.data_ptr<T>();
        for (const at::Tensor& input : saved) {
          result.push_back(at::zeros(input.sizes(), input.options()));
          T* dx = result.back().data_ptr<T>();
          walk(input,
               [&](int64_t from, int64_t to, std::size_t i) { dx[from] += g[to] * factors[i]; });
        }
      });
    }
    if (parameters_ > 0) {
      kept = std::move(saved);
      kept.push_back(grad);
    }
    saved.clear();
    return result;
  }

  void backward_weight(const LayerContext& /*context*/, const Tensors& kept,
                       const Tensors& sums) const override {
    if (parameters_ == 0) {
      return;
    }
    const NativeGuard guard;
    const at::Tensor& grad = kept.back();
    internal::with_float_type(grad.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* g = grad.data_ptr<T>();
      std::vector<T> gradients(static_cast<std::size_t>(outputs_));
      for (const at::Tensor& input : at::TensorList(kept).slice(0, kept.size() - 1)) {
        const T* x = input.data_ptr<T>();
        walk(input,
             [&](int64_t from, int64_t to, std::size_t i) { gradients[i] += g[to] * x[from]; });
      }
      T* sum = sums.at(0).data_ptr<T>();
      Cycle to(parameters_);
      Cycle of(outputs_);
      for (int64_t i = 0; i < std::max(outputs_, parameters_); ++i) {
        sum[to.next()] += static_cast<T>(share()) * gradients[static_cast<std::size_t>(of.next())];
      }
    });
  }

 private:
  // Calls f(element of the input, element of the output, i) for every value of every sample.
  template <typename F>
  void walk(const at::Tensor& input, const F& f) const {
    int64_t inputs = 1;
    for (const int64_t size : input.sizes().slice(1)) {
      inputs *= size;
    }
    for (int64_t b = 0; b < input.size(0); ++b) {
      Cycle from(inputs);
      for (int64_t i = 0; i < outputs_; ++i) {
        f(b * inputs + from.next(), b * outputs_ + i, static_cast<std::size_t>(i));
      }
    }
  }

  // What a parameter counts in its a_i, so that an update of size lr changes a_i by as much,
  // however many parameters share it.
  double share() const {
    const int64_t sharers = std::max<int64_t>(1, (parameters_ + outputs_ - 1) / outputs_);
    return 1.0 / std::sqrt(static_cast<double>(sharers));
  }

  // 1 + a_i
  template <typename T>
  std::vector<T> factors_of(const Tensors& weights) const {
    std::vector<T> factors(static_cast<std::size_t>(outputs_), T{1});
    if (parameters_ > 0) {
      const T* weight = weights.at(0).data_ptr<T>();
      Cycle from(parameters_);
      Cycle to(outputs_);
      for (int64_t i = 0; i < std::max(outputs_, parameters_); ++i) {
        factors[static_cast<std::size_t>(to.next())] +=
            static_cast<T>(share()) * weight[from.next()];
      }
    }
    return factors;
  }

  int64_t outputs_;
  int64_t parameters_;
};

}  // namespace

LayerPtr emulated(std::string name, int64_t outputs, int64_t parameters) {
  return std::make_unique<Emulated>(std::move(name), outputs, parameters);
}

}  // namespace millrace
