#include <ATen/ops/add.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class PositionEmbedding final : public Layer {
 public:
  PositionEmbedding(std::string name, int64_t length, int64_t width, double deviation)
      : Layer(std::move(name)), length_(length), width_(width), deviation_(deviation) {
    if (length < 1 || width < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (position_embedding): length and width must be at "
                              "least 1, found {} and {}",
                              this->name(), length, width));
    }
  }

  const char* kind() const override { return "position_embedding"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    const std::vector<int64_t>& shape = input.sample_shape;
    if (shape.size() != 2 || shape[0] > length_ || shape[1] != width_) {
      internal::refuse_input(*this, fmt::format("[at most {}, {}]", length_, width_), input);
    }
    return input;
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {length_, width_}, std::sqrt(3.0) * deviation_}};
  }

  at::Tensor forward(const LayerContext&, at::TensorList inputs, const Tensors& weights,
                     Tensors&) const override {
    const NativeGuard guard;
    return at::add(inputs[0], weights[0].narrow(0, 0, inputs[0].size(1)));
  }

  Tensors backward_input(const LayerContext&, Tensors&, const Tensors&, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& kept) const override {
    kept = {grad};
    return need_input_gradient ? Tensors{grad} : Tensors{};
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    sums[0].narrow(0, 0, kept[0].size(1)).add_(at::sum(kept[0], {0}));
  }

 private:
  int64_t length_;
  int64_t width_;
  double deviation_;
};

}  // namespace

LayerPtr position_embedding(std::string name, int64_t length, int64_t width, double deviation) {
  return std::make_unique<PositionEmbedding>(std::move(name), length, width, deviation);
}

}  // namespace millrace
