#include "millrace/train/internal/oracle_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace millrace::internal {

LrOfStep or_constant(LrOfStep lr, const TrainConfig& config) {
  return lr ? std::move(lr) : [rate = config.lr](int64_t /*step*/) { return rate; };
}

// Copies of all parameters in a flat buffer, in slot order; divided by `divisor`.
void append_parameters(const Stage& stage, const at::Tensor& flat, double divisor,
                       std::vector<at::Tensor>& out) {
  for (const Tensors& layer : stage.views(flat)) {
    for (const at::Tensor& parameter : layer) {
      out.push_back(divisor == 1.0 ? parameter.clone() : parameter.div(divisor));
    }
  }
}

std::vector<std::size_t> by_rank(const std::vector<int>& ranks) {
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
  return order;
}

at::Tensor take_sum(std::vector<at::Tensor>& sums, const std::vector<std::size_t>& order) {
  at::Tensor sum = sums[order.front()].clone();
  sums[order.front()].zero_();
  for (std::size_t i = 1; i < order.size(); ++i) {
    sum.add_(sums[order[i]]);
    sums[order[i]].zero_();
  }
  return sum;
}

void run_forward(const Stage& stage, const LayerContext& context, const WeightViews& weights,
                 const at::Tensor& target, std::map<int, at::Tensor>& made, Stash& stash,
                 LossSums& loss) {
  Tensors inputs;
  for (const Border& border : stage.inputs()) {
    inputs.push_back(made.at(border.producer));
  }
  const Tensors outputs = stage.forward(context, inputs, weights, target, stash, loss);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    made[stage.outputs()[k].producer] = outputs[k];
  }
}

void run_backward(const Stage& stage, const WeightViews& weights, const WeightViews& sums,
                  std::map<int, Tensors>& back, Stash& stash) {
  std::vector<BorderGradient> gradients;
  for (std::size_t k = 0; k < stage.outputs().size(); ++k) {
    const Tensors& parts = back[stage.outputs()[k].producer];
    for (auto gradient = parts.rbegin(); gradient != parts.rend(); ++gradient) {
      gradients.push_back({static_cast<int>(k), 0, *gradient});
    }
  }
  const Tensors own = stage.backward(stash, weights, gradients, sums);
  for (std::size_t k = 0; k < own.size(); ++k) {
    back[stage.inputs()[k].producer].push_back(own[k]);
  }
}

}  // namespace millrace::internal
