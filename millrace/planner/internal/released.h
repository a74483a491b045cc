// The partition of PipeDream's released optimizer: another cost than the paper's, and all machines
// used. A pure function over numbers; builtin/pipedream_released.cc puts names and ranks to it.
#pragma once

#include <optional>

#include "millrace/planner/internal/partition.h"

namespace millrace::internal {

struct ReleasedProblem {
  const Cuts& cuts;
  Network network;
  bool straight = false;  // at most one machine a stage, on every level
};

// On a level of M machines with bandwidth B, for layers that take T seconds (the level below's
// answer on all its machines) and hold W parameter bytes, with D machines on the level below (1 on
// the first): one stage on m machines takes (T + 4(m-1)W/(mB)/D)/m; a plan is one such stage, or a
// plan and a last stage, for which the exchange is not divided by D; its time is its slowest
// stage's. Activations cost nothing. Exactly all machines are used. Source: repository
// msr-fiddle/pipedream, optimizer/optimizer_graph_hierarchical.py.
//
// `conservative` in the answer: there are more than 400 cuts in one order, and ends of stages were
// found by bisection; since its inner plans use all machines, a plan of fewer layers may cost more,
// and the time is an upper bound. Nothing when there are fewer cuts than machines of a straight
// plan.
std::optional<Partition> released_partition(const ReleasedProblem& problem);

}  // namespace millrace::internal
