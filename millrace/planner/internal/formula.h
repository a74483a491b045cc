// The terms of PipeDream's formula, shared by the planner's search and pipedream_minibatch_s so
// that both round alike: a plan's time is bit for bit what the search said. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/core/cluster.h"
#include "millrace/core/profile.h"

namespace millrace::internal {

// One level of equal devices, as the formula sees it.
struct FlatNetwork {
  double relative_speed = 1;         // of the slowest device
  double bandwidth_bytes_per_s = 1;  // of the slowest link
};

// Devices 0..workers-1 of a cluster. One device has no link; its bandwidth is then infinite.
FlatNetwork flat_network(const Cluster& cluster, int workers);

// Throws kUnsupported that names the first edge (or missing edge) by which the profile is not a
// chain.
void expect_chain(const Profile& profile);

// `compute_s` at relative speed 1, summed in layer order. Rises with both sums, also in floating
// point: the search relies on it.
inline double stage_s(double compute_s, int64_t parameter_bytes, int replicas,
                      const FlatNetwork& network) {
  const double compute = compute_s / network.relative_speed;
  const double exchange =
      2.0 * (replicas - 1) * static_cast<double>(parameter_bytes) / network.bandwidth_bytes_per_s;
  return std::max(compute, exchange) / replicas;
}

// An activation forwards and its gradient back.
inline double cut_s(int64_t output_bytes, const FlatNetwork& network) {
  return 2.0 * static_cast<double>(output_bytes) / network.bandwidth_bytes_per_s;
}

}  // namespace millrace::internal
