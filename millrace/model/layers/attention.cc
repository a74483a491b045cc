// Causal self-attention over projected queries, keys and values. The projections are linear layers
// of their own, so that a planner may cut between them and this layer knows no weights.
//
// Shapes: B samples, T positions, H heads, D elements a head, G = B x H.
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/triu.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

class Attention final : public Layer {
 public:
  Attention(std::string name, int64_t width, int64_t heads)
      : Layer(std::move(name)), width_(width), heads_(heads) {
    if (width < 1 || heads < 1 || width % heads != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (attention): the width must be a multiple of the "
                              "heads and both at least 1, found {} and {}",
                              this->name(), width, heads));
    }
  }

  const char* kind() const override { return "attention"; }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.size() != 2 || input.sample_shape[1] != 3 * width_) {
      internal::refuse_input(*this, fmt::format("[length, {}]", 3 * width_), input,
                             "a linear layer before it makes queries, keys and values");
    }
    return {{input.sample_shape[0], width_}, input.dtype};
  }

  // Scores and the weighted sum of values are two products of T x T x D a head; all positions are
  // computed, those ahead too. The softmax is one an element.
  double forward_flops(const TensorSpecs& inputs) const override {
    const auto length = static_cast<double>(inputs[0].sample_shape[0]);
    return 4 * length * length * static_cast<double>(width_) +
           static_cast<double>(heads_) * length * length;
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors&,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const at::Tensor& input = inputs[0];
    const int64_t batch = input.size(0);
    const int64_t length = input.size(1);
    const at::Tensor query_GTD = heads_of(input, 0);
    const at::Tensor key_GTD = heads_of(input, 1);
    const at::Tensor value_GTD = heads_of(input, 2);
    // Minus infinity where a position would look ahead; the product adds to it.
    const at::Tensor mask_TT = at::triu(
        at::full({length, length}, -std::numeric_limits<double>::infinity(), input.options()), 1);
    const at::Tensor scores_GTT = at::baddbmm(mask_TT.expand({batch * heads_, length, length}),
                                              query_GTD, key_GTD.transpose(1, 2), 1, scale());
    at::Tensor share_GTT = at::_softmax(scores_GTT, 2, false);
    at::Tensor out = at::empty({batch, length, width_}, input.options());
    out.view({batch, length, heads_, head_width()})
        .copy_(by_position(at::bmm(share_GTT, value_GTD), batch));
    if (context.training) {
      saved = {query_GTD, key_GTD, value_GTD, std::move(share_GTT)};
    }
    return out;
  }

  Tensors backward_input(const LayerContext&, Tensors& saved, const Tensors&,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors&) const override {
    const NativeGuard guard;
    const Tensors passed = std::move(saved);
    saved.clear();
    if (!need_input_gradient) {
      return {};
    }
    const at::Tensor& query_GTD = passed[0];
    const at::Tensor& key_GTD = passed[1];
    const at::Tensor& value_GTD = passed[2];
    const at::Tensor& share_GTT = passed[3];
    const int64_t batch = grad.size(0);
    const int64_t length = grad.size(1);
    const at::Tensor grad_GTD = by_head(grad.reshape({batch, length, heads_, head_width()}));
    // A share of zero, where a position would look ahead, gets a score gradient of zero.
    at::Tensor score_grad_GTT = at::_softmax_backward_data(
        at::bmm(grad_GTD, value_GTD.transpose(1, 2)), share_GTT, 2, grad.scalar_type());
    score_grad_GTT.mul_(scale());
    at::Tensor back = at::empty({batch, length, 3 * width_}, grad.options());
    const at::Tensor parts = back.view({batch, length, 3, heads_, head_width()});
    parts.select(2, 0).copy_(by_position(at::bmm(score_grad_GTT, key_GTD), batch));
    parts.select(2, 1).copy_(
        by_position(at::bmm(score_grad_GTT.transpose(1, 2), query_GTD), batch));
    parts.select(2, 2).copy_(by_position(at::bmm(share_GTT.transpose(1, 2), grad_GTD), batch));
    return {back};
  }

  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}

 private:
  int64_t head_width() const { return width_ / heads_; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_width())); }

  // [B, T, H, D] -> [G, T, D], a copy.
  at::Tensor by_head(const at::Tensor& x_BTHD) const {
    return x_BTHD.transpose(1, 2).contiguous().view(
        {x_BTHD.size(0) * heads_, x_BTHD.size(1), head_width()});
  }
  // [G, T, D] -> [B, T, H, D], a view.
  at::Tensor by_position(const at::Tensor& x_GTD, int64_t batch) const {
    return x_GTD.view({batch, heads_, x_GTD.size(1), head_width()}).transpose(1, 2);
  }
  // Queries (0), keys (1) or values (2) of the input.
  at::Tensor heads_of(const at::Tensor& input, int64_t which) const {
    return by_head(
        input.reshape({input.size(0), input.size(1), 3, heads_, head_width()}).select(2, which));
  }

  int64_t width_;
  int64_t heads_;
};

}  // namespace

LayerPtr attention(std::string name, int64_t width, int64_t heads) {
  return std::make_unique<Attention>(std::move(name), width, heads);
}

}  // namespace millrace
