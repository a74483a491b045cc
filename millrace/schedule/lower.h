// Lowering: a schedule's bare actions become complete per-rank programs: communication, weight
// versions, reductions and updates. A pure function; runtime and simulator both execute its result.
#pragma once

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"

namespace millrace {

// Position p of the schedule is spread over the ranks of the plan's stage it holds. With r
// replicas, replica i of a stage talks to replica i of the next; every replica works on its share
// of every microbatch, and REDUCE precedes STEP. Replica counts must be equal over stages, and 1
// without a flush (else Error(kUnsupported) that says so). With a flush: one step. Without:
// `num_steps` minibatches, a STEP after each backward. Throws kInvalidArgument when plan and
// schedule disagree on the number of stages, kUnsupported when a position holds several stages.
//
// Order: RECV directly before the action that uses it, SEND directly after the one that makes it,
// one message for each microbatch of a range. With a flush REDUCE (when there are replicas) and
// STEP end the list; without, STEP follows the SEND_B of its backward. REDUCE and STEP carry the
// microbatches they apply. Versions are relative: the first read is 0 and the first STEP makes 1.
LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps);

// The same with straight positions: rank = position, one replica (for `millrace schedule` and
// slots).
LoweredSchedule lower(const Schedule& schedule, int64_t num_steps);

// Forward-only program for evaluation: microbatches 0..num_microbatches-1 in order through the
// plan's stages, replica i of each stage taking microbatches i, i + r, i + 2r, ... Its policy is
// empty, which marks a forward-only program, and no action has a weight version. One step of all
// microbatches, so that the interpreter asks once.
LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches);

}  // namespace millrace
