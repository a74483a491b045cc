#include "millrace/train/emulation.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "millrace/exchange/shard_group.h"
#include "millrace/exchange/tensor_port.h"
#include "millrace/model/stage.h"
#include "millrace/sim/simulate.h"
#include "millrace/train/session.h"

namespace millrace {

EmulationConfig emulation_config(const EmulateConfig& config, const Cluster& cluster,
                                 bool measured) {
  EmulationConfig result;
  result.time_scale = config.time_scale;
  result.spells = config;
  if (!config.profile.empty()) {
    result.profile = profile_from(read_document(config.profile));
  }
  result.cluster = cluster;
  if (measured) {
    result.cluster.levels = free_cluster(cluster.num_devices()).levels;
  }
  return result;
}

Emulation::Emulation(EmulationConfig config, const Plan& plan, const Model& model)
    : config_(std::move(config)), network_(config_.cluster) {
  for (int rank = 0; rank < plan.workers; ++rank) {
    rank_stages_.push_back(plan.stages_of_rank(rank));
  }
  network_.time_scale = config_.time_scale;
  network_.spin_s = default_spin_s(plan.num_used_ranks());
  if (!config_.profile) {
    return;
  }
  // Of the profile's own microbatch, so that nothing is rounded before it is divided.
  const auto samples = static_cast<double>(config_.profile->samples_per_microbatch);
  const std::vector<StageCost> costs = stage_costs(plan, *config_.profile, samples);
  const std::vector<std::vector<int>> layers = stage_layers(plan, model);
  for (std::size_t s = 0; s < costs.size(); ++s) {
    const StageCost& cost = costs[s];
    StageFacts facts;
    facts.seconds = {.forward_s = cost.forward_s / samples,
                     .input_gradient_s = cost.input_gradient_s / samples,
                     .weight_gradient_s = cost.weight_gradient_s / samples,
                     .recompute_s = cost.recompute_s / samples,
                     .update_s = cost.update_s};
    facts.parameter_bytes = static_cast<double>(cost.parameter_bytes);
    const Stage stage(model, layers[s]);
    facts.flat_elements = static_cast<double>(stage.flat_elements());
    stages_.push_back(facts);
  }
  find_tensors(layers, model);
  network_.message_bytes = [this](int /*from*/, int /*to*/, const MessageTag& tag,
                                  const at::Tensor& tensor) { return message_bytes(tag, tensor); };
  network_.reduction_bytes = [this](int stage, const at::Tensor& tensor) {
    return reduction_bytes(stage, tensor);
  };
}

std::unique_ptr<Communicator> Emulation::shape(std::unique_ptr<Communicator> engine) {
  return shape_links(std::move(engine), network_, abort_);
}

EmulatedDevice Emulation::device(int rank) const {
  std::map<int, StageSeconds> seconds;
  for (const int stage : rank_stages_.at(static_cast<std::size_t>(rank))) {
    if (config_.profile) {
      seconds[stage] = stages_.at(static_cast<std::size_t>(stage)).seconds;
    }
  }
  EmulatedDevice device(seconds, config_.time_scale / config_.cluster.speed_of(rank), abort_,
                        network_.spin_s);
  if (config_.spells.spell_steps > 0) {
    const auto workers = static_cast<int>(rank_stages_.size());
    device.set_spells([spells = config_.spells, rank, workers](int64_t step) {
      return spell_slowdown(spells, rank, workers, step);
    });
  }
  return device;
}

double Emulation::timeout_s(double configured_s) const {
  double slowest = 1;
  for (const double speed : config_.cluster.relative_speed) {
    slowest = std::min(slowest, speed);
  }
  return configured_s * std::max(1.0, config_.time_scale) / slowest;
}

void Emulation::unscale(Trace& trace) const {
  const double factor = 1 / config_.time_scale;
  trace.step_s *= factor;
  trace.window_s *= factor;
  for (RankTrace& rank : trace.ranks) {
    for (double* total : {&rank.compute_s, &rank.communicate_s, &rank.wait_s, &rank.update_s}) {
      *total *= factor;
    }
    rank.origin_s *= factor;
    for (std::vector<TraceEvent>* events : {&rank.events, &rank.beside}) {
      for (TraceEvent& event : *events) {
        event.start_s *= factor;
        event.end_s *= factor;
        event.wait_s *= factor;
      }
    }
  }
}

// A tensor goes once to each stage that uses it; those of one link are numbered by their layers.
void Emulation::find_tensors(const std::vector<std::vector<int>>& layers, const Model& model) {
  std::vector<int> stage_of(model.layers.size());
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const int layer : layers[s]) {
      stage_of[static_cast<std::size_t>(layer)] = static_cast<int>(s);
    }
  }
  std::map<StageLink, std::set<int>> producers;
  for (std::size_t to = 0; to < stage_of.size(); ++to) {
    for (const int from : model.inputs_of(static_cast<int>(to))) {
      if (from != kModelInput && stage_of[static_cast<std::size_t>(from)] != stage_of[to]) {
        producers[{stage_of[static_cast<std::size_t>(from)], stage_of[to]}].insert(from);
      }
    }
  }
  std::map<std::string, double> output_bytes;
  for (const LayerProfile& layer : config_.profile->layers) {
    output_bytes[layer.name] = static_cast<double>(layer.output_bytes);
  }
  for (const auto& [link, tensors] : producers) {
    for (const int layer : tensors) {
      sample_bytes_[link].push_back(
          output_bytes.at(model.layers[static_cast<std::size_t>(layer)]->name()) /
          static_cast<double>(config_.profile->samples_per_microbatch));
    }
  }
}

double Emulation::message_bytes(const MessageTag& tag, const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    return 0;
  }
  if (tag.kind == kShardMessage) {
    return reduction_bytes(tag.stage, tensor);
  }
  if (tag.kind == kRuleMessage) {
    return reduction_bytes(tag.stage, tensor.narrow(0, 0, TensorPort::vector_elements(tensor)));
  }
  const auto [first, second] = std::minmax(tag.stage, tag.to_stage);
  return sample_bytes_.at({first, second}).at(static_cast<std::size_t>(tag.tensor)) *
         static_cast<double>(tensor.size(0));
}

// The share of a stage's parameters that the tensor is of its flat buffer.
double Emulation::reduction_bytes(int stage, const at::Tensor& tensor) const {
  if (stage == Communicator::kNoStage) {
    return static_cast<double>(tensor.nbytes());  // the gradient's norm, no gradient
  }
  const StageFacts& facts = stages_.at(static_cast<std::size_t>(stage));
  return facts.flat_elements > 0
             ? facts.parameter_bytes * static_cast<double>(tensor.numel()) / facts.flat_elements
             : 0;
}

}  // namespace millrace
