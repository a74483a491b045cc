#include <ATen/ops/div.h>
#include <ATen/ops/mean.h>

#include <array>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class GlobalAveragePool final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "global_average_pool"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.size() != 3) {
      internal::refuse_input(*this, "[channels, height, width]", input);
    }
    return {{input.sample_shape[0]}, input.dtype};
  }

  // One addition an element of the input.
  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    if (context.training) {
      saved = {internal::shape_only(inputs[0])};
    }
    constexpr std::array<int64_t, 2> kImage = {2, 3};
    return at::mean(inputs[0], kImage);
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    Tensors result;
    if (need_input_gradient) {
      const std::vector<int64_t> sizes = internal::with_batch(grad.size(0), saved[0]);
      const auto pixels = static_cast<double>(sizes[2] * sizes[3]);
      result.push_back(
          grad.div(pixels).view({sizes[0], sizes[1], 1, 1}).expand(sizes).contiguous());
    }
    saved.clear();
    return result;
  }

  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}
};

}  // namespace

LayerPtr global_average_pool(std::string name) {
  return std::make_unique<GlobalAveragePool>(std::move(name));
}

}  // namespace millrace
