#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/sim/simulate.h"

namespace millrace {

namespace {

// A plan and a profile by number: each layer's place in the profile, its stage and its edges.
struct Numbering {
  Numbering(const Plan& plan, const Profile& profile) {
    for (const LayerProfile& layer : profile.layers) {
      index_of.emplace(layer.name, index_of.size());
    }
    stage_of.assign(profile.layers.size(), kNoStage);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      for (const std::string& name : plan.stages[s].layers) {
        const auto found = index_of.find(name);
        if (found == index_of.end()) {
          throw Error(
              ErrorCode::kInvalidArgument,
              fmt::format(
                  "the plan's layer `{}` is not in the profile of `{}`; profile the model that "
                  "the plan is for",
                  name, profile.model))
              .at_stage(static_cast<int>(s));
        }
        stage_of[found->second] = static_cast<int>(s);
      }
    }
    for (const ProfileEdge& edge : profile.edges) {
      edges.emplace_back(index_of.at(edge.from), index_of.at(edge.to));
    }
  }

  static constexpr int kNoStage = -1;
  std::unordered_map<std::string_view, std::size_t> index_of;
  std::vector<int> stage_of;
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // from, to
};

// What each stage's layers take: with recompute = "stage" from other stages alone, with "layer"
// from all layers; every tensor once.
std::vector<int64_t> taken_bytes(const Plan& plan, const Profile& profile,
                                 const Numbering& numbering) {
  std::vector<std::pair<int, std::size_t>> taken;  // stage, maker
  for (const auto& [from, to] : numbering.edges) {
    const int stage = numbering.stage_of[to];
    if (stage != Numbering::kNoStage &&
        (plan.recompute == Recompute::kLayer || numbering.stage_of[from] != stage)) {
      taken.emplace_back(stage, from);
    }
  }
  std::sort(taken.begin(), taken.end());
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  std::vector<int64_t> bytes(plan.stages.size(), 0);
  for (const auto& [stage, maker] : taken) {
    bytes[static_cast<std::size_t>(stage)] += profile.layers[maker].output_bytes;
  }
  return bytes;
}

// By layer: whether what it takes was made on other ranks.
std::vector<bool> starting_layers(const Plan& plan, const Numbering& numbering) {
  std::vector<bool> starts(numbering.stage_of.size(), true);
  for (const auto& [from, to] : numbering.edges) {
    const int maker = numbering.stage_of[from];
    const int user = numbering.stage_of[to];
    if (maker != Numbering::kNoStage && user != Numbering::kNoStage &&
        (maker == user || plan.stages[static_cast<std::size_t>(maker)].ranks ==
                              plan.stages[static_cast<std::size_t>(user)].ranks)) {
      starts[to] = false;
    }
  }
  return starts;
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
  const Numbering numbering(plan, profile);
  const std::vector<bool> starts = starting_layers(plan, numbering);
  const std::vector<int64_t> taken = taken_bytes(plan, profile, numbering);
  const double scale = samples_per_part / static_cast<double>(profile.samples_per_microbatch);
  const auto scaled = [scale](int64_t bytes) {
    return static_cast<int64_t>(std::llround(static_cast<double>(bytes) * scale));
  };
  std::vector<StageCost> costs;
  for (int s = 0; s < plan.num_stages(); ++s) {
    StageCost cost;
    std::vector<const LayerProfile*> own;
    int64_t largest_layer_bytes = 0;
    for (const std::string& name : plan.stages[s].layers) {
      const std::size_t index = numbering.index_of.at(name);
      const LayerProfile& layer = profile.layers[index];
      own.push_back(&layer);
      cost.forward_s += layer.forward_s;
      cost.input_gradient_s += layer.input_gradient_s;
      cost.weight_gradient_s += layer.weight_gradient_s;
      cost.update_s += layer.update_s;
      cost.output_bytes = layer.output_bytes;
      cost.parameter_bytes += layer.parameter_bytes;
      cost.stash_bytes += layer.stash_bytes + (starts[index] ? layer.shared_stash_bytes : 0);
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
      cost.stash_bytes = scaled(taken[static_cast<std::size_t>(s)]);
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
  const Numbering numbering(plan, profile);
  // A tensor with several users in one stage is sent there once.
  std::vector<std::pair<StageLink, std::size_t>> tensors;
  for (const auto& [from, to] : numbering.edges) {
    tensors.push_back({{numbering.stage_of[from], numbering.stage_of[to]}, from});
  }
  std::sort(tensors.begin(), tensors.end());
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  const double scale = samples_per_part / static_cast<double>(profile.samples_per_microbatch);
  std::vector<int64_t> bytes(links.size());
  for (const auto& [link, maker] : tensors) {
    const auto found = std::lower_bound(links.begin(), links.end(), link);
    if (found != links.end() && *found == link) {
      bytes[found - links.begin()] +=
          std::llround(static_cast<double>(profile.layers[maker].output_bytes) * scale);
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
