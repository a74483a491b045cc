// Dropout after Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
// Overfitting", JMLR 2014, scaled in training as is common today.
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

constexpr int64_t kDrawsPerBlock = 4;

class Dropout final : public Layer {
 public:
  Dropout(std::string name, double p) : Layer(std::move(name)), p_(p) {
    if (!(p >= 0 && p < 1)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (dropout): the probability must be in [0, 1), found {}",
                              this->name(), p));
    }
  }

  const char* kind() const override { return "dropout"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    return input;
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors&) const override {
    const NativeGuard guard;
    return context.training ? drop(context, inputs[0]) : inputs[0];
  }

  Tensors backward_input(const LayerContext& context, Tensors&, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    return need_input_gradient ? Tensors{drop(context, grad)} : Tensors{};
  }

  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}

 private:
  // The same elements fall for an input and for its gradient. A sample's draws begin with a block
  // of their own, so that they do not depend on which samples stand beside it.
  at::Tensor drop(const LayerContext& context, const at::Tensor& tensor) const {
    const at::Tensor source = tensor.contiguous();
    at::Tensor out = at::empty_like(source);
    const int64_t samples = source.size(0);
    const int64_t elements = samples == 0 ? 0 : source.numel() / samples;
    const int64_t blocks = (elements + kDrawsPerBlock - 1) / kDrawsPerBlock;
    const RandomKey key = context.draws(name());
    const auto bound = static_cast<uint32_t>(p_ * 4294967296.0);
    internal::with_float_type(source.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T scale = static_cast<T>(1.0 / (1.0 - p_));
      const T* from = source.data_ptr<T>();
      T* to = out.data_ptr<T>();
      for (int64_t n = 0; n < samples; ++n, from += elements, to += elements) {
        const int64_t first = (context.first_place + n) * blocks;
        for (int64_t block = 0; block < blocks; ++block) {
          const auto draws = key.block(static_cast<uint64_t>(first + block));
          const int64_t begin = block * kDrawsPerBlock;
          const int64_t size = std::min(kDrawsPerBlock, elements - begin);
          for (int64_t i = 0; i < size; ++i) {
            const bool keep = draws[static_cast<std::size_t>(i)] >= bound;
            to[begin + i] = keep ? from[begin + i] * scale : T{0};
          }
        }
      }
    });
    return out;
  }

  double p_;
};

}  // namespace

LayerPtr dropout(std::string name, double p) {
  return std::make_unique<Dropout>(std::move(name), p);
}

}  // namespace millrace
