#include "millrace/train/oracle.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "millrace/train/session.h"

namespace millrace {
namespace {

SgdConfig sgd_config(const TrainConfig& config) {
  return {.lr = config.lr, .momentum = config.momentum, .weight_decay = config.weight_decay};
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

}  // namespace

WholeBatchOracle::WholeBatchOracle(const Model& model, const TrainConfig& config)
    : stage_(model, 0, static_cast<int>(model.layers.size())),
      optimizer_(sgd_config(config), stage_.flat_elements(), model.input.dtype) {}

StepFacts WholeBatchOracle::step(const std::vector<at::Tensor>& weights, const Dataset& dataset,
                                 const int64_t* indices, int64_t count) {
  at::Tensor flat = stage_.new_flat();
  const WeightViews views = stage_.views(flat);
  std::size_t next = 0;
  for (const Tensors& layer : views) {
    for (const at::Tensor& parameter : layer) {
      parameter.copy_(weights.at(next++));
    }
  }
  at::Tensor sums = stage_.new_flat();
  const Batch batch = dataset.get(indices, count, flat.scalar_type());
  const LayerContext context{.training = true};
  Stash stash;
  LossSums loss;
  stage_.forward(context, batch.input, views, batch.target, stash, loss);
  stage_.backward(context, stash, views, at::Tensor(), stage_.views(sums));
  StepFacts facts;
  facts.loss_sum = loss.loss;
  append_parameters(stage_, sums, static_cast<double>(count), facts.gradients);
  optimizer_.update(flat, flat, sums, static_cast<double>(count));
  append_parameters(stage_, flat, 1.0, facts.weights);
  return facts;
}

DelayedSgdOracle::DelayedSgdOracle(const Model& model, const Plan& plan,
                                   const TrainConfig& config) {
  for (const auto& [first, last] : stage_ranges(plan)) {
    Stage stage(model, first, last);
    Sgd optimizer(sgd_config(config), stage.flat_elements(), model.input.dtype);
    at::Tensor initial = stage.new_flat();
    stage.initialize(initial, config.seed);
    parts_.push_back({std::move(stage), std::move(optimizer), {std::move(initial)}});
  }
}

StepFacts DelayedSgdOracle::step(const Dataset& dataset, const int64_t* indices, int64_t count) {
  const auto num_stages = static_cast<int64_t>(parts_.size());
  const Batch batch = dataset.get(indices, count, parts_.front().versions.front().scalar_type());
  const LayerContext context{.training = true};
  std::vector<WeightViews> views;
  std::vector<Stash> stashes(parts_.size());
  StepFacts facts;
  LossSums loss;
  at::Tensor x = batch.input;
  for (int64_t s = 0; s < num_stages; ++s) {
    const Part& part = parts_[static_cast<std::size_t>(s)];
    const int64_t version = std::max<int64_t>(0, minibatch_ - (num_stages - 1 - s));
    views.push_back(part.stage.views(part.versions.at(static_cast<std::size_t>(version))));
    x = part.stage.forward(context, x, views.back(), batch.target,
                           stashes[static_cast<std::size_t>(s)], loss);
  }
  facts.loss_sum = loss.loss;
  std::vector<at::Tensor> sums(parts_.size());
  at::Tensor grad;
  for (std::size_t s = parts_.size(); s-- > 0;) {
    const Part& part = parts_[s];
    sums[s] = part.stage.new_flat();
    grad = part.stage.backward(context, stashes[s], views[s], grad, part.stage.views(sums[s]));
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    Part& part = parts_[s];
    append_parameters(part.stage, sums[s], static_cast<double>(count), facts.gradients);
    at::Tensor next = at::empty_like(part.versions.back());
    part.optimizer.update(part.versions.back(), next, sums[s], static_cast<double>(count));
    append_parameters(part.stage, next, 1.0, facts.weights);
    part.versions.push_back(std::move(next));
  }
  ++minibatch_;
  return facts;
}

}  // namespace millrace
