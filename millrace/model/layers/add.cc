// The sum of several inputs, where a skip edge ends. Its gradient is that of each input, unchanged.
#include <ATen/ops/add.h>
#include <fmt/format.h>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class Add final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "add"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    if (inputs.size() < 2) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (add) takes at least two inputs, found {}", name(),
                              inputs.size()));
    }
    internal::expect_float(*this, inputs[0]);
    for (const TensorSpec& input : inputs) {
      if (input != inputs[0]) {
        internal::refuse_input(*this, "inputs of one shape: " + to_string(inputs[0]), input);
      }
    }
    return inputs[0];
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs.size() - 1) *
           static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    at::Tensor sum = at::add(inputs[0], inputs[1]);
    for (const at::Tensor& input : inputs.slice(2)) {
      sum.add_(input);
    }
    if (context.training) {
      saved.resize(inputs.size());  // all undefined: backward needs their number only
    }
    return sum;
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    Tensors result(need_input_gradient ? saved.size() : 0, grad);
    saved.clear();
    return result;
  }

  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}
};

}  // namespace

LayerPtr add(std::string name) { return std::make_unique<Add>(std::move(name)); }

}  // namespace millrace
