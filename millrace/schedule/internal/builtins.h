// What the files under builtin/ share: their declarations, drawn from builtin.def, and the
// pieces that pipelines (stages one after the other, each on one rank or round robin on several)
// are made of. Pure functions.
#pragma once

#include <cstdint>

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace {

// A namespace of their own, because other kinds have entries of the same name (the planner
// `pipedream`).
namespace schedule_builtin {
#define SCHEDULE(name, symbol, text) extern const ScheduleBuiltin symbol;
#include "millrace/schedule/builtin.def"
#undef SCHEDULE
}  // namespace schedule_builtin

namespace internal {

// Name, sizes and placement of a pipeline whose stage s stands on the next replicas_of(s) ranks;
// all action lists are there and empty. With a flush a step has num_parts() microbatches.
Schedule pipeline_schedule(const char* name, const ScheduleConfig& config, bool flush);

// One rank of such a pipeline: replica `replica` of `replicas` of its stage, to which every
// replicas-th microbatch goes, from `replica` on (round robin: PipeDream, SOSP'19, section 3.2).
struct Position {
  int rank = 0;
  int stage = 0;
  int replica = 0;
  int replicas = 1;

  // Microbatches of its own among the first `num_microbatches`.
  int64_t num_own(int64_t num_microbatches) const;
  // F or B of its `index`-th own microbatch.
  Action action(ActionKind kind, int64_t index) const;
};
std::vector<Position> positions_of(const ScheduleConfig& config);

// Forwards that a replica of a stage runs before its first backward under 1F1B: as many own
// microbatches as keep all ranks from this stage on busy, less the one it then works on.
// ceil(ranks from this stage on / replicas) - 1; S-1-s without replicas.
int one_f_one_b_warm_up(const ScheduleConfig& config, int stage);

// The order of one position that runs `ahead` own forwards before its first backward and then one
// backward after each forward, so that ahead = 0 is one microbatch at a time and
// ahead = num_microbatches all forwards first. Microbatches 0..num_microbatches-1 of the step.
ActionList staggered_order(const Position& position, int64_t num_microbatches, int64_t ahead);

}  // namespace internal
}  // namespace millrace
