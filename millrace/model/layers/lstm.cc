// Long short-term memory, and its backward through time by hand. What depends on the state goes
// step by step; what depends on the input alone, and every weight gradient, is one matrix product
// over all positions. So the weight half costs three calls, whatever the length.
//
// Shapes: T positions, B samples, E inputs, N hidden, G = 4 N of the part. Inside, time comes
// first: a step is then one contiguous piece.
//
// A part has some hidden units, all four gates of each. Its state depends on everybody's of the
// step before, so the parts meet at every step, forward and back.
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "millrace/model/internal/native.h"
#include "millrace/model/layers.h"

namespace millrace {
namespace {

using internal::NativeGuard;

// One step of one sample. `state_grad` comes in as the gradient of h, `cell_grad` as what later
// steps want of c; it leaves as what this step wants of the cell before. `before` is null at the
// first step, where that cell is zero.
template <typename T>
void step_back(const T* __restrict gates, const T* __restrict tanh_cell, const T* __restrict before,
               const T* __restrict state_grad, int64_t hidden, T* __restrict cell_grad,
               T* __restrict gate_grad) {
  const T one{1};
  for (int64_t n = 0; n < hidden; ++n) {
    const T input = gates[n];
    const T forget = gates[hidden + n];
    const T cell = gates[2 * hidden + n];
    const T output = gates[3 * hidden + n];
    const T t = tanh_cell[n];
    const T dc = cell_grad[n] + state_grad[n] * output * (one - t * t);
    gate_grad[n] = dc * cell * input * (one - input);
    gate_grad[hidden + n] = before == nullptr ? T{0} : dc * before[n] * forget * (one - forget);
    gate_grad[2 * hidden + n] = dc * input * (one - cell * cell);
    gate_grad[3 * hidden + n] = state_grad[n] * t * output * (one - output);
    cell_grad[n] = dc * forget;
  }
}

class Lstm final : public Layer {
 public:
  Lstm(std::string name, int64_t in, int64_t hidden)
      : Layer(std::move(name)), in_(in), hidden_(hidden), own_{0, hidden} {
    if (in < 1 || hidden < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" (lstm): inputs and hidden units must be at least 1, "
                              "found {} and {}",
                              this->name(), in, hidden));
    }
  }

  // Hidden units `own` of it.
  Lstm(const Lstm& whole, RowRange own)
      : Layer(whole.name()), in_(whole.in_), hidden_(whole.hidden_), own_(own) {}

  const char* kind() const override { return "lstm"; }
  std::unique_ptr<Layer> split(int part, int parts) const override {
    return hidden_ >= parts ? std::make_unique<Lstm>(*this, rows_of_part(hidden_, part, parts))
                            : nullptr;
  }

  TensorSpec output(const TensorSpecs& inputs) const override {
    const TensorSpec& input = internal::one_input(*this, inputs);
    internal::expect_float(*this, input);
    if (input.sample_shape.size() != 2 || input.sample_shape[1] != in_) {
      internal::refuse_input(*this, fmt::format("[length, {}]", in_), input);
    }
    return {{input.sample_shape[0], hidden_}, input.dtype};
  }

  // The products alone: four gates of each unit, from the input at every step and from the state at
  // every step but the first.
  double forward_flops(const TensorSpecs& inputs) const override {
    const auto length = static_cast<double>(inputs[0].sample_shape[0]);
    return 8 * static_cast<double>(units()) *
           (length * static_cast<double>(in_) + (length - 1) * static_cast<double>(hidden_));
  }
  std::vector<ParameterSpec> parameters() const override {
    const double bound = 1.0 / std::sqrt(static_cast<double>(hidden_));
    std::vector<ParameterSpec> specs = {{"weight_input", {4 * units(), in_}, bound},
                                        {"weight_hidden", {4 * units(), hidden_}, bound},
                                        {"bias", {4 * units()}, bound}};
    for (ParameterSpec& spec : specs) {
      for (int64_t gate = 0; is_part() && gate < 4; ++gate) {
        spec.rows.push_back({gate * hidden_ + own_.begin, gate * hidden_ + own_.end});
      }
    }
    return specs;
  }

  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    const NativeGuard guard;
    const int64_t batch = inputs[0].size(0);
    const int64_t length = inputs[0].size(1);
    at::Tensor input_TBE = inputs[0].transpose(0, 1).contiguous();
    at::Tensor gates_TBG =
        at::addmm(weights[2], matrix(input_TBE), weights[0].t()).view({length, batch, 4 * units()});
    at::Tensor cells_TBN = at::empty({length, batch, units()}, input_TBE.options());
    at::Tensor states_TBN = at::empty({length, batch, hidden_}, input_TBE.options());
    for (int64_t t = 0; t < length; ++t) {
      at::Tensor gates = gates_TBG.select(0, t);
      if (t > 0) {
        gates.addmm_(states_TBN.select(0, t - 1), weights[1].t());
      }
      const at::Tensor input_and_forget = gates.narrow(1, 0, 2 * units()).sigmoid_();
      const at::Tensor cell_gate = gates.narrow(1, 2 * units(), units()).tanh_();
      const at::Tensor output_gate = gates.narrow(1, 3 * units(), units()).sigmoid_();
      at::Tensor cell = cells_TBN.select(0, t);
      at::mul_out(cell, input_and_forget.narrow(1, 0, units()), cell_gate);
      if (t > 0) {
        cell.addcmul_(input_and_forget.narrow(1, units(), units()), cells_TBN.select(0, t - 1));
      }
      at::Tensor state = states_TBN.select(0, t);
      if (is_part()) {
        state.copy_(
            internal::peers(*this, context).gather(at::mul(output_gate, at::tanh(cell)), 1));
      } else {
        at::mul_out(state, output_gate, at::tanh(cell));
      }
    }
    at::Tensor out = states_TBN.transpose(0, 1).contiguous();
    if (context.training) {
      saved = {std::move(input_TBE), std::move(gates_TBG), std::move(cells_TBN),
               std::move(states_TBN)};
    }
    return out;
  }

  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const NativeGuard guard;
    at::Tensor gate_grad_TBG = back_through_time(context, saved[1], saved[2], weights[1], grad);
    Tensors result;
    if (need_input_gradient) {
      at::Tensor back = at::mm(matrix(gate_grad_TBG), weights[0]);
      if (is_part()) {
        back = internal::peers(*this, context).sum(std::move(back));
      }
      const at::Tensor back_TBE = back.view({grad.size(1), grad.size(0), in_});
      result.push_back(back_TBE.transpose(0, 1).contiguous());
    }
    kept = {std::move(saved[0]), std::move(saved[3]), std::move(gate_grad_TBG)};
    saved.clear();
    return result;
  }

  void backward_weight(const LayerContext&, const Tensors& kept,
                       const Tensors& sums) const override {
    const NativeGuard guard;
    const at::Tensor& states_TBN = kept[1];
    const at::Tensor& gate_grad_TBG = kept[2];
    at::Tensor input_sum = sums[0];
    input_sum.addmm_(matrix(gate_grad_TBG).t(), matrix(kept[0]));
    // The state that a step read is that of the step before; the first read none.
    const int64_t later = states_TBN.size(0) - 1;
    if (later > 0) {
      at::Tensor hidden_sum = sums[1];
      hidden_sum.addmm_(matrix(gate_grad_TBG.narrow(0, 1, later)).t(),
                        matrix(states_TBN.narrow(0, 0, later)));
    }
    at::Tensor bias_sum = sums[2];
    bias_sum.add_(at::sum(matrix(gate_grad_TBG), {0}));
  }

 private:
  // [T, B, ...] as the matrix of its rows.
  static at::Tensor matrix(const at::Tensor& tensor) { return tensor.flatten(0, 1); }

  // The gradients of the gates before their activations, all steps.
  at::Tensor back_through_time(const LayerContext& context, const at::Tensor& gates_TBG,
                               const at::Tensor& cells_TBN, const at::Tensor& weight_hidden,
                               const at::Tensor& grad) const {
    const at::Tensor grad_TBN = grad.transpose(0, 1).narrow(2, own_.begin, units()).contiguous();
    const at::Tensor tanh_cells_TBN = at::tanh(cells_TBN);
    at::Tensor gate_grad_TBG = at::empty_like(gates_TBG);
    const int64_t length = gates_TBG.size(0);
    const int64_t batch = gates_TBG.size(1);
    at::Tensor cell_grad_BN = at::zeros({batch, units()}, gates_TBG.options());
    for (int64_t t = length - 1; t >= 0; --t) {
      at::Tensor state_grad_BN = grad_TBN.select(0, t);
      if (t + 1 < length && is_part()) {
        const at::Tensor back_BN = internal::peers(*this, context)
                                       .sum(at::mm(gate_grad_TBG.select(0, t + 1), weight_hidden));
        state_grad_BN = at::add(state_grad_BN, back_BN.narrow(1, own_.begin, units()));
      } else if (t + 1 < length) {
        state_grad_BN = at::addmm(state_grad_BN, gate_grad_TBG.select(0, t + 1), weight_hidden);
      }
      internal::with_float_type(gates_TBG.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        const int64_t first = t * batch * units();
        const int64_t before = first - batch * units();
        for (int64_t row = 0; row < batch * units(); row += units()) {
          step_back<T>(gates_TBG.data_ptr<T>() + 4 * (first + row),
                       tanh_cells_TBN.data_ptr<T>() + first + row,
                       t == 0 ? nullptr : cells_TBN.data_ptr<T>() + before + row,
                       state_grad_BN.data_ptr<T>() + row, units(), cell_grad_BN.data_ptr<T>() + row,
                       gate_grad_TBG.data_ptr<T>() + 4 * (first + row));
        }
      });
    }
    return gate_grad_TBG;
  }

  int64_t units() const { return own_.end - own_.begin; }
  bool is_part() const { return units() < hidden_; }

  int64_t in_;
  int64_t hidden_;  // of the whole
  RowRange own_;    // hidden units of the whole that are here
};

}  // namespace

LayerPtr lstm(std::string name, int64_t in, int64_t hidden) {
  return std::make_unique<Lstm>(std::move(name), in, hidden);
}

}  // namespace millrace
