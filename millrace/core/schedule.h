// Schedule: the order of actions on every rank, executed by the runtime and timed by the simulator.
// A plain value with a JSON form. Here "rank" is a position of the pipeline; lowering
// (millrace/schedule/lower.h) puts the plan's ranks on the positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/action.h"
#include "millrace/core/plan.h"

namespace millrace {

// With a flush a step is `period`: microbatches 0..num_microbatches-1, drained; prologue and
// epilogue are empty. Without one, an epoch is prologue, then period again and again (each repeat
// advances every microbatch by `period_microbatches`), then epilogue. The epilogue goes on where
// the period stopped: it may be written for any number of repeats, as it is moved so that on every
// rank the least microbatch of a kind and stage follows the period's by whole periods.
struct Schedule {
  std::string name;
  std::string policy = "flush";  // weight policy: flush, stash, latest, ...
  bool flush = true;
  int num_ranks = 1;
  int num_stages = 1;
  int num_microbatches = 1;         // of a step
  int64_t period_microbatches = 1;  // num_microbatches with a flush; else whole steps
  // Positions that hold each stage; a position may hold several stages, and each microbatch of a
  // stage runs on one of its positions.
  std::vector<std::vector<int>> stage_ranks;
  ActionLists prologue;
  ActionLists period;
  ActionLists epilogue;

  bool operator==(const Schedule&) const = default;
};

// The bare actions (F, B, I, W) of `num_steps` steps, microbatches counted through: step k holds
// k*num_microbatches .. (k+1)*num_microbatches-1. Without a flush any num_steps >= 1 works: the
// period is repeated as often as needed, and what any part starts beyond the last minibatch is
// dropped. Throws Error(kInvalidArgument) when the parts cannot cover the steps, or the epilogue
// does not go on where the period stops.
ActionLists unroll(const Schedule& schedule, int64_t num_steps);

Schedule schedule_from(const Document& document);
Value to_value(const Schedule& schedule);

// What lowering makes of a schedule and a plan: complete actions per world rank. Executed by the
// interpreter, timed by the simulator. With a flush it holds one step and is repeated, each time
// advancing microbatches by `microbatches_per_step` and versions by one; without, it holds a whole
// segment of `num_steps` minibatches and runs once.
struct LoweredSchedule {
  std::string name;
  std::string policy;
  bool flush = true;
  int num_stages = 1;
  int64_t num_steps = 1;
  int64_t microbatches_per_step = 1;
  ActionLists ranks;  // one a world rank; an idle rank's is empty
  // World ranks that hold each stage: its replicas; where layers are split, replica by replica the
  // parts of each, all of which run its list in lockstep.
  std::vector<std::vector<int>> stage_ranks;
  std::vector<std::vector<int>> rank_stages;  // stages that each rank holds; none for an idle one
  std::vector<StageLink> links;               // which stages hand tensors to which, ascending
  // A run may stop early only after a multiple of so many steps, where all rounds of all stages
  // end: 1 with a flush, else the least common multiple of the stages' replicas.
  int64_t round_steps = 1;
  double blend_lambda = 1;  // of policy blend: see millrace/schedule/policy.h
  Shard shard = Shard::kNothing;
  int split_parts = 1;  // as the plan's

  // The replica that the rank holds, or holds a part of; -1 when it does not hold the stage.
  int replica_of(int rank, int stage) const;
};

}  // namespace millrace
