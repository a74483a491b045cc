// The terms of PipeDream's formula, shared by the planner's search and pipedream_minibatch_s so
// that both round alike: a plan's time is bit for bit what the search said. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "millrace/core/cluster.h"

namespace millrace::internal {

// One network level, as the formula sees it: `size` components of `devices` devices each.
struct Level {
  int size = 1;
  int devices = 1;
  double bandwidth_bytes_per_s = 1;  // of the slowest link between two of the components
};

struct Network {
  double relative_speed = 1;  // of the slowest device
  std::vector<Level> levels;  // innermost first, at least one; `devices` of the first is 1
};

// Devices 0..workers-1 of a cluster. Levels that join nothing are left out. Where the workers do
// not fill the outermost component, its size is that of the whole components below it: 10 workers
// in machines of 4 are 2 machines. One device has no link; its bandwidth is then infinite.
Network network_of(const Cluster& cluster, int workers);

// A group of stages on `replicas` components, which share its minibatches: `inner_s` is what one
// component takes for a minibatch, and the group's gradients are exchanged among all. Rises with
// `inner_s` and `parameter_bytes`, also in floating point: the search relies on it.
inline double group_s(double inner_s, int64_t parameter_bytes, int replicas,
                      double bandwidth_bytes_per_s) {
  const double exchange =
      2.0 * (replicas - 1) * static_cast<double>(parameter_bytes) / bandwidth_bytes_per_s;
  return std::max(inner_s, exchange) / replicas;
}

// An activation forwards and its gradient back.
inline double cut_s(int64_t output_bytes, double bandwidth_bytes_per_s) {
  return 2.0 * static_cast<double>(output_bytes) / bandwidth_bytes_per_s;
}

}  // namespace millrace::internal
