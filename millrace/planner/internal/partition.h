// PipeDream's partition of a chain on one network level: the exact optimum of the formula under the
// planner's tie rule. A pure function over numbers; builtin/pipedream.cc puts names and ranks to
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/planner/internal/formula.h"

namespace millrace::internal {

struct ChainLayer {
  double compute_s = 0;  // forward and backward at relative speed 1
  int64_t parameter_bytes = 0;
  int64_t output_bytes = 0;
};

struct ChainProblem {
  std::vector<ChainLayer> layers;  // at least one
  FlatNetwork network;
  int workers = 1;
  std::optional<int> stages;  // exactly so many; otherwise free
  std::vector<int>
      replicas;  // empty: free; one: of every stage; else one a stage, and `stages` set to match
};

struct ChainStage {
  int first = 0;  // layer
  int last = 0;   // inclusive
  int replicas = 1;
  bool operator==(const ChainStage&) const = default;
};

struct ChainPartition {
  double minibatch_s = 0;
  std::vector<ChainStage> stages;
};

// Least time over all cuts into consecutive stages and all replica numbers that sum to at most
// `workers`; among equals the fewest workers, then the fewest stages, then the earliest cuts.
// Restrictions must be feasible (make_plan sees to that). With N layers, M workers and K = stages
// where given, else 1: O(N^2 K + N K M^2 log N) time.
ChainPartition best_partition(const ChainProblem& problem);

}  // namespace millrace::internal
