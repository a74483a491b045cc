#include "millrace/train/oracle.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "millrace/runtime/clip.h"
#include "millrace/train/internal/oracle_parts.h"
#include "millrace/train/session.h"

namespace millrace {
namespace {

double clip_of(const std::optional<double>& clip_norm, const at::Tensor& gradient_sum,
               double samples) {
  return clip_norm ? clip_factor(std::sqrt(squared_norm(gradient_sum)) / samples, *clip_norm) : 1.0;
}

using internal::append_parameters;
using internal::or_constant;

}  // namespace

WholeBatchOracle::WholeBatchOracle(const Model& model, const TrainConfig& config, int parts,
                                   LrOfStep lr)
    : stage_(model, 0, static_cast<int>(model.layers.size())),
      optimizer_(make_optimizer(config, flat_layout(stage_, model.dtype()))),
      buffers_(stage_.new_buffers()),
      seed_(config.seed),
      parts_(model.mixes_samples() ? parts : 1),
      clip_norm_(config.clip_norm),
      lr_(or_constant(std::move(lr), config)) {}

StepFacts WholeBatchOracle::step(const std::vector<at::Tensor>& weights, const Dataset& dataset,
                                 const int64_t* indices, int64_t count, int64_t step) {
  at::Tensor flat = stage_.new_flat();
  const WeightViews views = stage_.views(flat);
  std::size_t next = 0;
  for (const Tensors& layer : views) {
    for (const at::Tensor& parameter : layer) {
      parameter.copy_(weights.at(next++));
    }
  }
  at::Tensor sums = stage_.new_flat();
  const WeightViews sum_views = stage_.views(sums);
  LossSums loss;
  int64_t place = 0;
  for (const int64_t size : split_evenly(count, parts_)) {
    if (size == 0) {
      continue;
    }
    const Batch batch = dataset.get(indices + place, size, flat.scalar_type());
    const LayerContext context{
        .training = true, .seed = seed_, .step = step, .first_place = place, .buffers = buffers_};
    Stash stash;
    stage_.forward(context, batch.input, views, batch.target, stash, loss);
    stage_.backward(stash, views, {}, sum_views);
    place += size;
  }
  StepFacts facts;
  facts.loss_sum = loss.loss;
  StageFacts& all = facts.stages[0];
  const auto samples = static_cast<double>(count);
  append_parameters(stage_, sums, samples, all.gradients);
  const double clip = clip_of(clip_norm_, sums, samples);
  optimizer_->update(flat, flat, sums, {.samples = samples, .lr = lr_(step_++), .clip = clip});
  append_parameters(stage_, flat, 1.0, all.weights);
  return facts;
}

DelayedSgdOracle::DelayedSgdOracle(const Model& model, const Plan& plan, bool vertical_sync,
                                   const TrainConfig& config, LrOfStep lr)
    : vertical_sync_(vertical_sync),
      seed_(config.seed),
      clip_norm_(config.clip_norm),
      lr_(or_constant(std::move(lr), config)) {
  MILLRACE_CHECK(!clip_norm_ || plan.num_stages() == 1,
                 "stages that update at different times have no common norm");
  int64_t ranks_from_here = plan.num_used_ranks();
  int64_t all_rounds = 1;
  for (const PlanStage& stage : plan.stages) {
    all_rounds = std::lcm(all_rounds, static_cast<int64_t>(stage.ranks.size()));
  }
  const std::vector<std::vector<int>> stages = stage_layers(plan, model);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Stage stage(model, stages[s]);
    std::unique_ptr<Optimizer> optimizer =
        make_optimizer(config, flat_layout(stage, model.dtype()));
    at::Tensor initial = stage.new_flat();
    stage.initialize(initial, config.seed);
    Part part(std::move(stage), std::move(optimizer));
    part.replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    part.warm_up = (ranks_from_here + part.replicas - 1) / part.replicas - 1;
    part.round = plan.update == UpdateRule::kStep ? all_rounds : part.replicas;
    part.versions.push_back(std::move(initial));
    part.buffers = part.stage.new_buffers();
    for (int64_t replica = 0; replica < part.replicas; ++replica) {
      part.sums.push_back(part.stage.new_flat());
    }
    part.order = internal::by_rank(plan.stages[s].ranks);
    ranks_from_here -= part.replicas;
    parts_.push_back(std::move(part));
  }
}

// The version that the present minibatch reads on a stage.
int64_t DelayedSgdOracle::version_of(const Part& part) const {
  const int64_t backwards = std::max<int64_t>(0, minibatch_ / part.replicas - part.warm_up);
  return backwards / (part.round / part.replicas);
}

void DelayedSgdOracle::update(Part& part, StageFacts& facts) {
  at::Tensor sum = internal::take_sum(part.sums, part.order);
  const auto samples = static_cast<double>(part.samples);
  append_parameters(part.stage, sum, samples, facts.gradients);
  at::Tensor next = at::empty_like(part.versions.back());
  const double clip = clip_of(clip_norm_, sum, samples);
  part.optimizer->update(part.versions.back(), next, sum,
                         {.samples = samples, .lr = lr_(minibatch_), .clip = clip});
  append_parameters(part.stage, next, 1.0, facts.weights);
  part.versions.push_back(std::move(next));
  part.samples = 0;
}

StepFacts DelayedSgdOracle::step(const Dataset& dataset, const int64_t* indices, int64_t count,
                                 bool last, int64_t step) {
  const Batch batch = dataset.get(indices, count, parts_.front().versions.front().scalar_type());
  std::vector<WeightViews> views;
  std::vector<Stash> stashes(parts_.size());
  StepFacts facts;
  LossSums loss;
  std::map<int, at::Tensor> made = {{kModelInput, batch.input}};  // by producer
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const Part& part = parts_[s];
    const int64_t version = version_of(vertical_sync_ ? parts_.front() : part);
    views.push_back(part.stage.views(part.versions.at(static_cast<std::size_t>(version))));
    const LayerContext context{
        .training = true, .seed = seed_, .step = step, .first_place = 0, .buffers = part.buffers};
    internal::run_forward(part.stage, context, views.back(), batch.target, made, stashes[s], loss);
  }
  facts.loss_sum = loss.loss;
  std::map<int, Tensors> back;  // by producer: its consumers' gradients, the last consumer first
  for (std::size_t s = parts_.size(); s-- > 0;) {
    const Part& part = parts_[s];
    const at::Tensor& sum = part.sums[static_cast<std::size_t>(minibatch_ % part.replicas)];
    internal::run_backward(part.stage, views[s], part.stage.views(sum), back, stashes[s]);
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    Part& part = parts_[s];
    part.samples += count;
    if (last || (minibatch_ + 1) % part.round == 0) {
      update(part, facts.stages[static_cast<int>(s)]);
    }
  }
  ++minibatch_;
  return facts;
}

}  // namespace millrace
