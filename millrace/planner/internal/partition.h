// PipeDream's partition of a layer graph over network levels: the exact optimum of the formula
// under the planner's tie rule. Pure functions over numbers; builtin/pipedream.cc puts names and
// ranks to it.
//
// The family. On level k, the layers between two cuts are divided into consecutive stages; a stage
// gets some of the level's components, every one of which runs the same plan of the stage's layers
// on level k-1. Level 0's components are devices. Components may stay idle on every level.
#pragma once

#include <optional>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/planner/internal/cuts.h"
#include "millrace/planner/internal/formula.h"

namespace millrace::internal {

struct PartitionProblem {
  const Cuts& cuts;
  Network network;
  std::optional<int> stages;  // exactly so many, over all levels together; otherwise free
  // Replicas of a stage. Empty: free; one: of every stage; else one a stage, and `stages` set to
  // match. Only on one level, but that every stage may be asked to have 1.
  std::vector<int> replicas;
  // Of a device. When set, a stage of W parameter and A stash bytes needs k(W + A) + W of them,
  // where k is the number of minibatches in flight: on one level, the used workers from this stage
  // on over its replicas, rounded up; on several levels see PartitionCosts::outside_below.
  std::optional<double> memory_bytes;
};

// A stage after the levels are taken apart: its replicas are all of its ranks.
struct PartitionStage {
  int first_cut = 0;
  int last_cut = 0;
  std::vector<int> ranks;
  bool operator==(const PartitionStage&) const = default;
};

struct Partition {
  double minibatch_s = 0;
  double memory_bytes = 0;  // of the worker that needs most, as counted above
  std::vector<PartitionStage> stages;
  // The minibatches in flight were rounded up: a faster partition that fits may have been missed.
  bool conservative = false;
};

// Least time; among equals the fewest workers, then the fewest stages, then the earliest cuts, then
// the fewest components of the outermost level. Nothing when the restrictions, or the memory, leave
// no partition.
std::optional<Partition> best_partition(const PartitionProblem& problem);

// The least memory_bytes that leaves a partition, whatever its time.
double least_memory_bytes(const PartitionProblem& problem);

// The plan that a partition means, with the partition's time as objective_s, and a note when the
// cuts are not all there are.
Plan plan_of(const Partition& partition, const Cuts& cuts, const Profile& profile);

}  // namespace millrace::internal
