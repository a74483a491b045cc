#include "millrace/planner/internal/formula.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/planner.h"

namespace millrace {
namespace internal {

Network network_of(const Cluster& cluster, int workers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Network network;
  network.relative_speed = cluster.speed_of(0);
  for (int device = 1; device < workers; ++device) {
    network.relative_speed = std::min(network.relative_speed, cluster.speed_of(device));
  }
  int devices = 1;
  for (const NetworkLevel& level : cluster.levels) {
    if (devices >= workers) {
      break;
    }
    const int size = std::min(level.size, workers / devices);
    if (level.size > 1) {
      network.levels.push_back({size, devices, level.bandwidth_bytes_per_s});
    }
    devices *= level.size;
  }
  if (network.levels.empty()) {
    network.levels.push_back({1, 1, kInfinity});
  }
  if (cluster.links.empty()) {
    return network;
  }
  // An override may be slower or faster than its level: only the links
  // themselves tell.
  for (std::size_t k = 0; k < network.levels.size(); ++k) {
    Level& level = network.levels[k];
    const int within = k + 1 < network.levels.size() ? network.levels[k + 1].devices : workers;
    level.bandwidth_bytes_per_s = kInfinity;
    for (int a = 0; a < workers; ++a) {
      for (int b = a + 1; b < workers; ++b) {
        if (a / within == b / within && a / level.devices != b / level.devices) {
          level.bandwidth_bytes_per_s =
              std::min(level.bandwidth_bytes_per_s, cluster.bandwidth_between(a, b));
        }
      }
    }
  }
  return network;
}

namespace {

// What the formula knows of one stage of a plan.
struct StageLoad {
  double compute_s = 0;
  int64_t parameter_bytes = 0;
  int64_t cut_bytes = 0;  // what crosses from this stage and those before to those after
};

// The part of a stage that runs in one component.
struct Part {
  const StageLoad* load;
  std::vector<int> ranks;
};

// Layers of the profile by name, and what each stage of a plan holds of them.
std::vector<StageLoad> loads_of(const Plan& plan, const Profile& profile) {
  std::unordered_map<std::string, std::size_t> indices;
  for (const LayerProfile& layer : profile.layers) {
    indices.emplace(layer.name, indices.size());
  }
  std::vector<StageLoad> loads(plan.stages.size());
  std::vector<std::size_t> stage_of(profile.layers.size(), plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& name : plan.stages[s].layers) {
      const auto found = indices.find(name);
      if (found == indices.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the plan's layer `{}` is not in the profile "
                                "of `{}`; profile the "
                                "model that the plan is for",
                                name, profile.model))
            .at_stage(static_cast<int>(s));
      }
      const LayerProfile& layer = profile.layers[found->second];
      loads[s].compute_s += layer.compute_s();
      loads[s].parameter_bytes += layer.parameter_bytes;
      stage_of[found->second] = s;
    }
  }
  // A layer's output crosses every cut from its own stage to its last
  // consumer's, once.
  std::vector<std::size_t> last_consumer = stage_of;
  for (const ProfileEdge& edge : profile.edges) {
    std::size_t& last = last_consumer[indices.at(edge.from)];
    last = std::max(last, stage_of[indices.at(edge.to)]);
  }
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    for (std::size_t s = stage_of[i]; s < last_consumer[i] && s < loads.size(); ++s) {
      loads[s].cut_bytes += profile.layers[i].output_bytes;
    }
  }
  return loads;
}

// The formula over the levels of a network; nothing where the stages do not
// follow them.
class Levels {
 public:
  explicit Levels(const Network& network) : network_(network) {}

  // Seconds of a minibatch for `parts`, which all run in one component of
  // `level`.
  std::optional<double> seconds(std::size_t level, const std::vector<Part>& parts) const {
    const Level& here = network_.levels[level];
    double slowest_s = 0;
    std::set<int> used;
    for (std::size_t first = 0; first < parts.size();) {
      const std::set<int> components = components_of(parts[first], here);
      std::size_t end = first + 1;
      while (end < parts.size() && level > 0 && components_of(parts[end], here) == components) {
        ++end;
      }
      for (const int component : components) {
        if (!used.insert(component).second) {
          return std::nullopt;  // shared with another group
        }
      }
      const std::optional<double> inner_s =
          inner_seconds(level,
                        {parts.begin() + static_cast<std::ptrdiff_t>(first),
                         parts.begin() + static_cast<std::ptrdiff_t>(end)},
                        components);
      if (!inner_s) {
        return std::nullopt;
      }
      int64_t parameter_bytes = 0;
      for (std::size_t p = first; p < end; ++p) {
        parameter_bytes += parts[p].load->parameter_bytes;
      }
      slowest_s = std::max(slowest_s,
                           group_s(*inner_s, parameter_bytes, static_cast<int>(components.size()),
                                   here.bandwidth_bytes_per_s));
      if (end < parts.size()) {
        slowest_s =
            std::max(slowest_s, cut_s(parts[end - 1].load->cut_bytes, here.bandwidth_bytes_per_s));
      }
      first = end;
    }
    return slowest_s;
  }

 private:
  static std::set<int> components_of(const Part& part, const Level& level) {
    std::set<int> components;
    for (const int rank : part.ranks) {
      components.insert(rank / level.devices);
    }
    return components;
  }

  // Of one component of a group; nothing when its components do not run alike.
  std::optional<double> inner_seconds(std::size_t level, const std::vector<Part>& group,
                                      const std::set<int>& components) const {
    if (level == 0) {
      return group.front().load->compute_s / network_.relative_speed;
    }
    std::optional<double> common_s;
    for (const int component : components) {
      std::vector<Part> parts;
      for (const Part& part : group) {
        Part inside{part.load, {}};
        for (const int rank : part.ranks) {
          if (rank / network_.levels[level].devices == component) {
            inside.ranks.push_back(rank);
          }
        }
        if (inside.ranks.size() * components.size() != part.ranks.size()) {
          return std::nullopt;
        }
        parts.push_back(std::move(inside));
      }
      const std::optional<double> inner_s = seconds(level - 1, parts);
      if (!inner_s || (common_s && *common_s != *inner_s)) {
        return std::nullopt;
      }
      common_s = inner_s;
    }
    return common_s;
  }

  const Network& network_;
};

// As if all links were as slow as the slowest.
double flat_seconds(const std::vector<Part>& parts, const Network& network) {
  double bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();
  for (const Level& level : network.levels) {
    bandwidth_bytes_per_s = std::min(bandwidth_bytes_per_s, level.bandwidth_bytes_per_s);
  }
  double slowest_s = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const StageLoad& load = *parts[p].load;
    slowest_s = std::max(slowest_s,
                         group_s(load.compute_s / network.relative_speed, load.parameter_bytes,
                                 static_cast<int>(parts[p].ranks.size()), bandwidth_bytes_per_s));
    if (p + 1 < parts.size()) {
      slowest_s = std::max(slowest_s, cut_s(load.cut_bytes, bandwidth_bytes_per_s));
    }
  }
  return slowest_s;
}

}  // namespace
}  // namespace internal

double pipedream_minibatch_s(const Plan& plan, const Profile& profile, const Cluster& cluster) {
  const std::vector<internal::StageLoad> loads = internal::loads_of(plan, profile);
  const internal::Network network = internal::network_of(cluster, plan.workers);
  std::vector<internal::Part> parts;
  for (std::size_t s = 0; s < loads.size(); ++s) {
    parts.push_back({&loads[s], plan.stages[s].ranks});
  }
  const std::optional<double> seconds =
      internal::Levels(network).seconds(network.levels.size() - 1, parts);
  return seconds ? *seconds : internal::flat_seconds(parts, network);
}

}  // namespace millrace
