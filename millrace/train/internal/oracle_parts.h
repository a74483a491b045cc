// What the oracles share: stages run one after another in one thread. Pure functions.
#pragma once

#include <map>
#include <vector>

#include "millrace/train/oracle.h"

namespace millrace::internal {

// `lr`, or else the config's rate always.
LrOfStep or_constant(LrOfStep lr, const TrainConfig& config);

// Copies of all parameters in a flat buffer, in slot order; divided by `divisor`.
void append_parameters(const Stage& stage, const at::Tensor& flat, double divisor,
                       std::vector<at::Tensor>& out);

// Indices of the ranks, ascending by rank: the order in which replicas' gradients are added up.
std::vector<std::size_t> by_rank(const std::vector<int>& ranks);

// The sum of all replicas' sums, which are zero afterwards; stays valid until they are used again.
at::Tensor take_sum(std::vector<at::Tensor>& sums, const std::vector<std::size_t>& order);

// A stage's forward on the tensors in `made`, by producer, to which it adds its outputs.
void run_forward(const Stage& stage, const LayerContext& context, const WeightViews& weights,
                 const at::Tensor& target, std::map<int, at::Tensor>& made, Stash& stash,
                 LossSums& loss);

// Its backward. `back` holds, by producer, the gradients of its consumers, the last consumer first.
void run_backward(const Stage& stage, const WeightViews& weights, const WeightViews& sums,
                  std::map<int, Tensors>& back, Stash& stash);

}  // namespace millrace::internal
