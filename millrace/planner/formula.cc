#include "millrace/planner/internal/formula.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/planner.h"

namespace millrace {
namespace internal {

FlatNetwork flat_network(const Cluster& cluster, int workers) {
  FlatNetwork network;
  network.relative_speed = cluster.speed_of(0);
  network.bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();
  for (int a = 0; a < workers; ++a) {
    network.relative_speed = std::min(network.relative_speed, cluster.speed_of(a));
    for (int b = a + 1; b < workers; ++b) {
      network.bandwidth_bytes_per_s =
          std::min(network.bandwidth_bytes_per_s, cluster.bandwidth_between(a, b));
    }
  }
  return network;
}

void expect_chain(const Profile& profile) {
  if (is_chain(profile)) {
    return;
  }
  std::set<std::pair<std::string, std::string>> links;
  for (std::size_t i = 0; i + 1 < profile.layers.size(); ++i) {
    links.emplace(profile.layers[i].name, profile.layers[i + 1].name);
  }
  std::string what = "an edge is listed twice";
  std::set<std::pair<std::string, std::string>> missing = links;
  for (const ProfileEdge& edge : profile.edges) {
    missing.erase({edge.from, edge.to});
  }
  if (!missing.empty()) {
    what = fmt::format("`{}` does not feed `{}`", missing.begin()->first, missing.begin()->second);
  }
  for (const ProfileEdge& edge : profile.edges) {
    if (!links.contains({edge.from, edge.to})) {
      what = fmt::format("the edge `{}` -> `{}` passes by a layer", edge.from, edge.to);
      break;
    }
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("the formula of several stages needs a profile that is a chain of layers, "
                  "found that {}; use planner `one` or `data-parallel`, or join the "
                  "branch into one layer",
                  what));
}

}  // namespace internal

double pipedream_minibatch_s(const Plan& plan, const Profile& profile, const Cluster& cluster) {
  if (plan.num_stages() > 1) {
    internal::expect_chain(profile);
  }
  std::unordered_map<std::string, const LayerProfile*> layers;
  for (const LayerProfile& layer : profile.layers) {
    layers.emplace(layer.name, &layer);
  }
  const internal::FlatNetwork network = internal::flat_network(cluster, plan.workers);
  double slowest_s = 0;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const PlanStage& stage = plan.stages[s];
    double compute_s = 0;
    int64_t parameter_bytes = 0;
    int64_t output_bytes = 0;
    for (const std::string& name : stage.layers) {
      const auto found = layers.find(name);
      if (found == layers.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the plan's layer `{}` is not in the profile of `{}`; profile the "
                                "model that the plan is for",
                                name, profile.model))
            .at_stage(s);
      }
      compute_s += found->second->compute_s();
      parameter_bytes += found->second->parameter_bytes;
      output_bytes = found->second->output_bytes;
    }
    const int replicas = static_cast<int>(stage.ranks.size());
    slowest_s =
        std::max(slowest_s, internal::stage_s(compute_s, parameter_bytes, replicas, network));
    if (s + 1 < plan.num_stages()) {
      slowest_s = std::max(slowest_s, internal::cut_s(output_bytes, network));
    }
  }
  return slowest_s;
}

}  // namespace millrace
