#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/sim/simulate.h"

namespace millrace {

namespace {

// What a stage's layers take: with recompute = "stage" from other stages alone, with "layer" from
// all layers; every tensor once.
int64_t taken_bytes(const Plan& plan, const Profile& profile, int stage) {
  const std::vector<std::string>& own = plan.stages[static_cast<std::size_t>(stage)].layers;
  const auto holds = [&own](const std::string& layer) {
    return std::find(own.begin(), own.end(), layer) != own.end();
  };
  std::set<std::string> taken;
  for (const ProfileEdge& edge : profile.edges) {
    if (holds(edge.to) && (plan.recompute == Recompute::kLayer || !holds(edge.from))) {
      taken.insert(edge.from);
    }
  }
  int64_t bytes = 0;
  for (const LayerProfile& layer : profile.layers) {
    bytes += taken.contains(layer.name) ? layer.output_bytes : 0;
  }
  return bytes;
}

constexpr int64_t kElementBytes = 4;

// The gradient's pieces of a stage whose layers stand in the order of its flat buffer: a backward
// runs them from the last to the first. Recomputing comes before it all, or before each layer's.
std::vector<GradientPiece> pieces_of(const std::vector<const LayerProfile*>& layers,
                                     Recompute recompute) {
  const auto element_at = [](int64_t bytes) { return (bytes + kElementBytes - 1) / kElementBytes; };
  int64_t bytes = 0;
  double whole_s = 0;
  double half_s = 0;
  for (const LayerProfile* layer : layers) {
    bytes += layer->parameter_bytes;
    whole_s += recompute == Recompute::kStage ? layer->forward_s : 0;
  }
  std::vector<GradientPiece> pieces;
  for (auto at = layers.rbegin(); at != layers.rend(); ++at) {
    const LayerProfile& layer = **at;
    whole_s += layer.backward_s() + (recompute == Recompute::kLayer ? layer.forward_s : 0);
    half_s += layer.weight_gradient_s;
    const int64_t end = element_at(bytes);
    bytes -= layer.parameter_bytes;
    if (const Range range{element_at(bytes), end}; range.size() > 0) {
      pieces.push_back({range, whole_s, half_s});
    }
  }
  for (GradientPiece& piece : pieces) {
    piece.done = whole_s > 0 ? piece.done / whole_s : 1;
    piece.half_done = half_s > 0 ? piece.half_done / half_s : 1;
  }
  return pieces;
}

}  // namespace

std::vector<StageCost> stage_costs(const Plan& plan, const Profile& profile,
                                   double samples_per_part) {
  if (!(samples_per_part > 0)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("expected more than 0 samples for each replica and microbatch, found {}; raise "
                    "the batch or lower microbatches or replicas",
                    samples_per_part));
  }
  std::unordered_map<std::string, const LayerProfile*> layers;
  for (const LayerProfile& layer : profile.layers) {
    layers.emplace(layer.name, &layer);
  }
  std::unordered_map<std::string, std::size_t> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& layer : plan.stages[s].layers) {
      stage_of.emplace(layer, s);
    }
  }
  const double scale = samples_per_part / static_cast<double>(profile.samples_per_microbatch);
  const auto scaled = [scale](int64_t bytes) {
    return static_cast<int64_t>(std::llround(static_cast<double>(bytes) * scale));
  };
  std::vector<StageCost> costs;
  for (int s = 0; s < plan.num_stages(); ++s) {
    StageCost cost;
    std::vector<const LayerProfile*> own;
    int64_t largest_layer_bytes = 0;
    // Whether what the layer takes was made on other ranks.
    const auto starts_here = [&](const LayerProfile& layer) {
      return std::none_of(profile.edges.begin(), profile.edges.end(), [&](const ProfileEdge& edge) {
        const auto maker = stage_of.find(edge.from);
        return edge.to == layer.name && maker != stage_of.end() &&
               plan.stages[maker->second].ranks == plan.stages[s].ranks;
      });
    };
    for (const std::string& name : plan.stages[s].layers) {
      const auto found = layers.find(name);
      if (found == layers.end()) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format(
                "the plan's layer `{}` is not in the profile of `{}`; profile the model that "
                "the plan is for",
                name, profile.model))
            .at_stage(s);
      }
      const LayerProfile& layer = *found->second;
      own.push_back(&layer);
      cost.forward_s += layer.forward_s;
      cost.input_gradient_s += layer.input_gradient_s;
      cost.weight_gradient_s += layer.weight_gradient_s;
      cost.update_s += layer.update_s;
      cost.output_bytes = layer.output_bytes;
      cost.parameter_bytes += layer.parameter_bytes;
      cost.stash_bytes += layer.stash_bytes + (starts_here(layer) ? layer.shared_stash_bytes : 0);
      cost.kept_bytes += layer.kept_bytes;
      largest_layer_bytes =
          std::max(largest_layer_bytes, layer.stash_bytes + layer.shared_stash_bytes);
    }
    cost.forward_s *= scale;
    cost.input_gradient_s *= scale;
    cost.weight_gradient_s *= scale;
    cost.output_bytes = scaled(cost.output_bytes);
    cost.stash_bytes = scaled(cost.stash_bytes);
    cost.kept_bytes = scaled(cost.kept_bytes);
    if (plan.recompute != Recompute::kNothing) {
      cost.recompute_s = cost.forward_s;
      cost.recomputed_bytes =
          plan.recompute == Recompute::kStage ? cost.stash_bytes : scaled(largest_layer_bytes);
      cost.stash_bytes = scaled(taken_bytes(plan, profile, s));
    }
    if (plan.shard != Shard::kNothing) {
      cost.update_s /= static_cast<double>(plan.stages[s].ranks.size());
    }
    cost.pieces = pieces_of(own, plan.recompute);
    costs.push_back(std::move(cost));
  }
  return costs;
}

double samples_per_part(const Schedule& schedule, int64_t batch) {
  return static_cast<double>(batch) / static_cast<double>(schedule.num_microbatches);
}

std::vector<int64_t> link_bytes(const Plan& plan, const Profile& profile,
                                const std::vector<StageLink>& links, double samples_per_part) {
  std::unordered_map<std::string, int> stage_of;
  for (int s = 0; s < plan.num_stages(); ++s) {
    for (const std::string& layer : plan.stages[s].layers) {
      stage_of.emplace(layer, s);
    }
  }
  std::unordered_map<std::string, int64_t> output_bytes;
  for (const LayerProfile& layer : profile.layers) {
    output_bytes.emplace(layer.name, layer.output_bytes);
  }
  // A tensor with several users in one stage is sent there once.
  std::set<std::pair<StageLink, std::string>> tensors;
  for (const ProfileEdge& edge : profile.edges) {
    tensors.insert({{stage_of.at(edge.from), stage_of.at(edge.to)}, edge.from});
  }
  const double scale = samples_per_part / static_cast<double>(profile.samples_per_microbatch);
  std::vector<int64_t> bytes(links.size());
  for (const auto& [link, layer] : tensors) {
    const auto found = std::lower_bound(links.begin(), links.end(), link);
    if (found != links.end() && *found == link) {
      bytes[found - links.begin()] +=
          std::llround(static_cast<double>(output_bytes.at(layer)) * scale);
    }
  }
  return bytes;
}

std::vector<StageCost> slot_costs(int num_stages, double f, double b) {
  StageCost cost;
  cost.forward_s = f;
  cost.input_gradient_s = b / 2;
  cost.weight_gradient_s = b - b / 2;
  return std::vector<StageCost>(num_stages, cost);
}

}  // namespace millrace
