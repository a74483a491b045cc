#include "millrace/profiler/internal/marked_model.h"

#include "millrace/profiler/internal/kernel_recorder.h"

namespace millrace::internal {
namespace {

class MarkedLayer final : public Layer {
 public:
  explicit MarkedLayer(const Layer& layer) : Layer(layer.name()), layer_(layer) {}

  const char* kind() const override { return layer_.kind(); }
  TensorSpec output(const TensorSpecs& inputs) const override { return layer_.output(inputs); }
  std::vector<ParameterSpec> parameters() const override { return layer_.parameters(); }
  double forward_flops(const TensorSpecs& inputs) const override {
    return layer_.forward_flops(inputs);
  }
  std::vector<BorrowedParameter> borrowed() const override { return layer_.borrowed(); }
  std::vector<BufferSpec> buffers() const override { return layer_.buffers(); }
  std::vector<BufferSpec> accumulators() const override { return layer_.accumulators(); }
  void commit(at::TensorList accumulators, at::TensorList buffers) const override {
    layer_.commit(accumulators, buffers);
  }
  bool mixes_samples() const override { return layer_.mixes_samples(); }
  bool needs_forward_weights() const override { return layer_.needs_forward_weights(); }
  bool joins_kept() const override { return layer_.joins_kept(); }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const KernelMark mark(KernelRowKind::kLayer, kind(), name());
    return layer_.forward(context, inputs, weights, saved);
  }
  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const KernelMark mark(KernelRowKind::kLayer, kind(), name());
    return layer_.backward_input(context, saved, weights, grad, need_input_gradient, kept);
  }
  void backward_weight(const LayerContext& context, const Tensors& kept,
                       const Tensors& sums) const override {
    const KernelMark mark(KernelRowKind::kLayer, kind(), name());
    layer_.backward_weight(context, kept, sums);
  }

 private:
  const Layer& layer_;
};

class MarkedLoss final : public Loss {
 public:
  explicit MarkedLoss(const Loss& loss) : loss_(loss) {}
  const char* kind() const override { return loss_.kind(); }
  void check(const TensorSpec& output, const TensorSpec& target) const override {
    loss_.check(output, target);
  }
  LossSums evaluate(const at::Tensor& output, const at::Tensor& target,
                    at::Tensor* gradient) const override {
    const KernelMark mark(KernelRowKind::kLoss, kind(), "loss");
    return loss_.evaluate(output, target, gradient);
  }

 private:
  const Loss& loss_;
};

}  // namespace

Model marked_model(const Model& model) {
  Model marked;
  marked.name = model.name;
  marked.input = model.input;
  marked.target = model.target;
  marked.inputs = model.inputs;
  for (const LayerPtr& layer : model.layers) {
    marked.layers.push_back(std::make_unique<MarkedLayer>(*layer));
  }
  marked.loss = std::make_unique<MarkedLoss>(*model.loss);
  return marked;
}

}  // namespace millrace::internal
