// Sharded state: a stage's replicas divide its optimizer state, and with more gradients and
// weights, among themselves. A pass of lowering that puts reduce-scatters (REDUCE), joins (GATHER)
// and releases (FREE) into the lists. Who keeps what: core/shard_range.h. Pure functions.
//
// Sources: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC'20), section
// 5, for what is divided; "Breadth-First Pipeline Parallelism" (MLSys 2023), section 4, for what a
// gather serves. Where exactly GATHER, FREE and REDUCE stand is our reconstruction.
#pragma once

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"

namespace millrace {

// Whether the lowered schedule shards a stage: asked for, and the stage has several replicas.
bool is_sharded(const LoweredSchedule& lowered, int stage);

// Throws Error(kUnsupported) at key "parallel.shard" when the plan shards and the schedule has no
// flush, or the plan's rule is not bsp: replicas of a sharded stage hold one copy of its state
// between them, and a rule is about the copies of each.
void check_shard(const Plan& plan, const Schedule& schedule);

// Rewrites the lists of a schedule with a flush, which end with REDUCEs, a NORM if any, and STEPs,
// as `shard` says. A *run* is a longest row of compute actions of one stage on a rank's list,
// whatever messages stand between them.
//
// zero-1: REDUCE and STEP stay (a reduce-scatter, and the update of the replica's own shard), and
//   the list ends with a GATHER of each sharded stage.
// zero-2: besides, the REDUCE at the end is replaced by one behind every run with a B or W, which
//   empties the full gradient into the owners' sums.
// zero-3: a GATHER before each run and a FREE behind it; REDUCE as in zero-2; none at the end.
//
// A replica of a stage of N bytes on P replicas sends N/P x (P-1) with each GATHER and each REDUCE.
// With V stages a rank and M microbatches, in breadth-first order: zero-1 and zero-2 one of each a
// step, 2N(P-1)/P; zero-3 two GATHERs and one REDUCE, but one GATHER of the rank's last stage,
// whose forwards and backwards are one run: (3N - last stage)(P-1)/P, whatever M. One stage a rank
// is one run: 2N(P-1)/P under all three. Where a rank comes back to a stage for each microbatch, up
// to 2M GATHERs and M REDUCEs.
//
// Throws Error(kUnsupported) when replicas of a stage would meet unequal numbers of times.
void shard_lists(LoweredSchedule& lowered, Shard shard);

}  // namespace millrace
