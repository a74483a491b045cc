#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <fmt/format.h>

#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

constexpr double kEpsilon = 1e-5;

class LayerNorm final : public Layer {
 public:
  LayerNorm(std::string name, int64_t width) : Layer(std::move(name)), width_(width) {
    if (width < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (layer_norm): the width must be at least 1, found {}",
                              this->name(), width));
    }
  }

  const char* kind() const override { return "layer_norm"; }
  bool joins_kept() const override { return true; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.empty() || input.sample_shape.back() != width_) {
      internal::refuse_input(*this, fmt::format("a last dimension of {}", width_), input);
    }
    return input;
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {width_}, 0, 1}, {"bias", {width_}, 0, 0}};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor input = inputs[0].contiguous();
    auto [out, mean, inverse] =
        at::native_layer_norm(input, {width_}, weights[0], weights[1], kEpsilon);
    if (context.training) {
      saved = {input, std::move(mean), std::move(inverse)};
    }
    return std::move(out);
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    kept = {std::move(saved[0]), std::move(saved[1]), std::move(saved[2]), grad.contiguous()};
    saved.clear();
    if (!need_input_gradient) {
      return {};
    }
    return {std::get<0>(differentiate(kept, weights[0], {true, false, false}))};
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    // The gradients of weight and bias need no values of either: a sum's shape will do.
    const auto [unused, weight, bias] = differentiate(kept, sums[0], {false, true, true});
    at::Tensor weight_sum = sums[0];
    weight_sum.add_(weight);
    at::Tensor bias_sum = sums[1];
    bias_sum.add_(bias);
  }

 private:
  std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiate(const Tensors& kept,
                                                               const at::Tensor& weight,
                                                               std::array<bool, 3> wanted) const {
    return at::native_layer_norm_backward(kept[3], kept[0], {width_}, kept[1], kept[2], weight,
                                          weight, wanted);
  }

  int64_t width_;
};

}  // namespace

LayerPtr layer_norm(std::string name, int64_t width) {
  return std::make_unique<LayerNorm>(std::move(name), width);
}

}  // namespace millrace
