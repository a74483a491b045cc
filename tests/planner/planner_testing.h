// Small profiles and clusters for the planner's tests.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/profile.h"
#include "millrace/planner/planner.h"

namespace millrace::testing {

struct Layer {
  double compute_s = 1;
  int64_t parameter_bytes = 0;
  int64_t output_bytes = 0;
};

// A chain l0 -> l1 -> ... whose layers spend all their seconds in the forward.
inline Profile chain(const std::vector<Layer>& layers) {
  Profile profile;
  profile.model = "chain";
  for (const Layer& layer : layers) {
    LayerProfile entry;
    entry.name = "l" + std::to_string(profile.layers.size());
    entry.forward_s = layer.compute_s;
    entry.parameter_bytes = layer.parameter_bytes;
    entry.output_bytes = layer.output_bytes;
    profile.layers.push_back(entry);
  }
  make_chain(profile);
  return profile;
}

inline Cluster flat(int size, double bandwidth_bytes_per_s) {
  Cluster cluster;
  NetworkLevel level;
  level.size = size;
  level.bandwidth_bytes_per_s = bandwidth_bytes_per_s;
  cluster.levels = {level};
  return cluster;
}

inline Cluster two_levels(int inner, int outer, double inner_bandwidth, double outer_bandwidth) {
  Cluster cluster = flat(inner, inner_bandwidth);
  cluster.levels.push_back(flat(outer, outer_bandwidth).levels[0]);
  return cluster;
}

// "3x1 2x2": layers x replicas of each stage.
inline std::string shape(const Plan& plan) {
  std::string text;
  for (const PlanStage& stage : plan.stages) {
    text += (text.empty() ? "" : " ") + std::to_string(stage.layers.size()) + "x" +
            std::to_string(stage.ranks.size());
  }
  return text;
}

}  // namespace millrace::testing
