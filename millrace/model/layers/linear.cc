#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <cmath>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class Linear final : public Layer {
 public:
  // Without an owner the weight is its own.
  Linear(std::string name, std::string owner, int64_t in, int64_t out, bool bias)
      : Layer(std::move(name)),
        owner_(std::move(owner)),
        in_(in),
        out_(out),
        bias_(bias),
        own_{0, out} {
    if (in < 1 || out < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (linear): inputs and outputs must be at least 1, found "
                              "{} and {}",
                              this->name(), in, out));
    }
  }

  // Rows `own` of it, which make as many of its outputs.
  Linear(const Linear& whole, RowRange own)
      : Layer(whole.name()), in_(whole.in_), out_(whole.out_), bias_(whole.bias_), own_(own) {}

  const char* kind() const override { return "linear"; }
  std::unique_ptr<Layer> split(int part, int parts) const override {
    return owner_.empty() && out_ >= parts
               ? std::make_unique<Linear>(*this, rows_of_part(out_, part, parts))
               : nullptr;
  }
  bool joins_kept() const override { return true; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.empty() || input.sample_shape.back() != in_) {
      internal::refuse_input(*this, to_string(TensorSpec{{in_}, input.dtype}), input,
                             input.sample_shape.size() > 1 && input.sample_elements() == in_
                                 ? "put a flatten layer before it"
                                 : "");
    }
    TensorSpec output = input;
    output.sample_shape.back() = out_;
    return output;
  }

  double forward_flops(const TensorSpecs& inputs) const override {
    return 2 * static_cast<double>(own_rows()) * static_cast<double>(inputs[0].sample_elements());
  }
  std::vector<ParameterSpec> parameters() const override {
    const double bound = 1.0 / std::sqrt(static_cast<double>(in_));
    std::vector<ParameterSpec> specs;
    if (owner_.empty()) {
      specs.push_back({"weight", {own_rows(), in_}, bound});
    }
    if (bias_) {
      specs.push_back({"bias", {own_rows()}, bound});
    }
    for (ParameterSpec& spec : specs) {
      if (is_part()) {
        spec.rows = {own_};
      }
    }
    return specs;
  }

  std::vector<BorrowedParameter> borrowed() const override {
    return owner_.empty() ? std::vector<BorrowedParameter>{}
                          : std::vector<BorrowedParameter>{{owner_, "weight", {out_, in_}}};
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor input = rows(inputs[0], in_);
    if (context.training) {
      saved = {input};
    }
    at::Tensor result =
        bias_ ? at::addmm(weights[1], input, weights[0].t()) : at::mm(input, weights[0].t());
    if (is_part()) {
      result = internal::peers(*this, context).gather(result, 1);
    }
    return unrows(result, inputs[0]);
  }

  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    kept = {std::move(saved[0]), rows(grad, out_).narrow(1, own_.begin, own_rows())};
    saved.clear();
    if (!need_input_gradient) {
      return {};
    }
    at::Tensor result = at::mm(kept[1], weights[0]);
    if (is_part()) {
      result = internal::peers(*this, context).sum(std::move(result));
    }
    return {unrows(result, grad)};
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    const at::Tensor& input = kept[0];
    const at::Tensor& grad = kept[1];
    // The matrix product adds into the flat buffer itself: no temporary of the weight's size.
    at::Tensor weight_sum = sums[0];
    weight_sum.addmm_(grad.t(), input);
    if (bias_) {
      at::Tensor bias_sum = sums[1];
      bias_sum.add_(at::sum(grad, {0}));
    }
  }

 private:
  // [B, ..., width] as the matrix [B x ..., width], and a matrix as what has `like`'s other
  // dimensions.
  static at::Tensor rows(const at::Tensor& tensor, int64_t width) {
    return tensor.dim() == 2 ? tensor : tensor.reshape({tensor.numel() / width, width});
  }
  static at::Tensor unrows(const at::Tensor& matrix, const at::Tensor& like) {
    if (like.dim() == 2) {
      return matrix;
    }
    std::vector<int64_t> sizes = like.sizes().vec();
    sizes.back() = matrix.size(1);
    return matrix.view(sizes);
  }

  int64_t own_rows() const { return own_.end - own_.begin; }
  bool is_part() const { return own_rows() < out_; }

  std::string owner_;  // of the weight; empty: this layer
  int64_t in_;
  int64_t out_;  // of the whole
  bool bias_;
  RowRange own_;  // rows of the whole that are here
};

}  // namespace

LayerPtr linear(std::string name, int64_t in, int64_t out, bool bias) {
  return std::make_unique<Linear>(std::move(name), "", in, out, bias);
}

LayerPtr tied_linear(std::string name, std::string owner, int64_t in, int64_t out) {
  return std::make_unique<Linear>(std::move(name), std::move(owner), in, out, /*bias=*/false);
}

}  // namespace millrace
