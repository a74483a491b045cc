// Layers that change no value's place: activations and flatten. None has parameters.
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class WithoutParameters : public Layer {
 public:
  using Layer::Layer;
  std::vector<ParameterSpec> parameters() const final { return {}; }
  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const final {}
};

// An activation whose derivative follows from its output. That output is what the next layer saves
// as its input, so saving it costs no memory; saving the input would keep a second tensor alive.
class Activation : public WithoutParameters {
 public:
  using WithoutParameters::WithoutParameters;

  TensorSpec output(const TensorSpecs& inputs) const final {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    return input;
  }
  double forward_flops(const TensorSpecs& inputs) const final {
    return static_cast<double>(inputs[0].sample_elements());
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const final {
    const NativeGuard guard;
    // Never in place: what this layer gets may be saved elsewhere, or be another rank's.
    at::Tensor result = apply(inputs[0]);
    if (context.training) {
      saved = {result};
    }
    return result;
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient, Tensors&) const final {
    const NativeGuard guard;
    Tensors result;
    if (need_input_gradient) {
      result.push_back(differentiate(saved[0], grad));
    }
    saved.clear();
    return result;
  }

 private:
  virtual at::Tensor apply(const at::Tensor& input) const = 0;
  virtual at::Tensor differentiate(const at::Tensor& result, const at::Tensor& grad) const = 0;
};

class Relu final : public Activation {
 public:
  using Activation::Activation;
  const char* kind() const override { return "relu"; }

 private:
  at::Tensor apply(const at::Tensor& input) const override { return at::clamp_min(input, 0); }
  at::Tensor differentiate(const at::Tensor& result, const at::Tensor& grad) const override {
    return at::threshold_backward(grad, result, 0);
  }
};

class Tanh final : public Activation {
 public:
  using Activation::Activation;
  const char* kind() const override { return "tanh"; }

 private:
  at::Tensor apply(const at::Tensor& input) const override { return at::tanh(input); }
  at::Tensor differentiate(const at::Tensor& result, const at::Tensor& grad) const override {
    return at::tanh_backward(grad, result);
  }
};

// Its derivative does not follow from its output, so it saves its input.
class Gelu final : public WithoutParameters {
 public:
  using WithoutParameters::WithoutParameters;
  const char* kind() const override { return "gelu"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    return input;
  }
  double forward_flops(const TensorSpecs& inputs) const override {
    return static_cast<double>(inputs[0].sample_elements());
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    if (context.training) {
      saved = {inputs[0]};
    }
    return at::gelu(inputs[0]);
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    Tensors result;
    if (need_input_gradient) {
      result.push_back(at::gelu_backward(grad, saved[0]));
    }
    saved.clear();
    return result;
  }
};

class Flatten final : public WithoutParameters {
 public:
  using WithoutParameters::WithoutParameters;
  const char* kind() const override { return "flatten"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    return {{input.sample_elements()}, input.dtype};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor& input = inputs[0];
    if (context.training) {
      saved = {internal::shape_only(input)};
    }
    int64_t elements = 1;  // not "-1": of an empty batch that would be ambiguous
    for (const int64_t size : input.sizes().slice(1)) {
      elements *= size;
    }
    return input.reshape({input.size(0), elements});
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    Tensors result;
    if (need_input_gradient) {
      result.push_back(grad.reshape(internal::with_batch(grad.size(0), saved[0])));
    }
    saved.clear();
    return result;
  }
};

}  // namespace

LayerPtr relu(std::string name) { return std::make_unique<Relu>(std::move(name)); }
LayerPtr tanh(std::string name) { return std::make_unique<Tanh>(std::move(name)); }
LayerPtr gelu(std::string name) { return std::make_unique<Gelu>(std::move(name)); }
LayerPtr flatten(std::string name) { return std::make_unique<Flatten>(std::move(name)); }

}  // namespace millrace
