// How long a collective program takes on a cluster, and which is the fastest: what `auto` means.
// Used by planner, simulator and the executor, which remember the answer by size. Pure functions.
//
// A message takes the links that core/links.h says: all devices of a machine share its link. A link
// carries one message at a time, in the order in which they become ready, for bytes / bandwidth;
// the latency passes after that and occupies nothing. To send or to take a message costs the device
// the cluster's `action_overhead_s`, as in a schedule. Sums cost nothing: the cluster does not say
// how fast a device adds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/collective/program.h"
#include "millrace/core/cluster.h"

namespace millrace {

// Bytes on the wire of a block of so many elements (> 0).
using WireBytes = std::function<double(int64_t num_elements)>;
WireBytes plain_bytes(double element_bytes);

struct CollectiveTiming {
  double seconds = 0;            // until the last member has received all and its sends are taken
  std::vector<double> member_s;  // the same of each member
};

// Member m runs on device ranks[m]; all begin at 0. Throws Error(kInvalidArgument) unless there is
// one device of the cluster for each member, no two the same.
CollectiveTiming time_program(const CollectiveProgram& program, const std::vector<int>& ranks,
                              const Cluster& cluster, const WireBytes& wire_bytes);

struct TimedCollective {
  std::string name;
  std::vector<int> grid;  // for `grid`, else empty
  double seconds = 0;
};

struct CollectiveChoice {
  TimedCollective best;
  std::vector<TimedCollective> all;  // every candidate, fastest first; `best` is the first
  std::string reason;  // "ring: 1.2 ms for 4.0 MB over 4 ranks; next is tree with 1.4 ms"
};

// Times every program that is offered, and grids of all ordered factorisations into two and three
// sizes. Of equal times the one that stands first in the registry wins. Throws as time_program().
CollectiveChoice choose_collective(const std::vector<int>& ranks, int64_t elements,
                                   const Cluster& cluster, const WireBytes& wire_bytes);

// The config of an all-reduce over these devices: the components of level 0 are the hosts, where
// there are further levels.
CollectiveConfig collective_config(const std::vector<int>& ranks, int64_t elements,
                                   const Cluster& cluster);

}  // namespace millrace
