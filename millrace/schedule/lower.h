// Lowering: a schedule's bare actions become complete per-rank programs: communication, weight
// versions, reductions and updates. A pure function; runtime and simulator both execute its result.
#pragma once

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"

namespace millrace {

// Position p of the schedule is run by one of the plan's ranks: the k-th position of a stage by the
// stage's k-th rank, so the schedule must have been made for the plan's shape (schedule_config).
// Which position runs which microbatch is read off the lists; tensors go along `links`, each
// straight from its maker to its user, and need no message between stages of one rank. With a
// flush: one step. Without: `num_steps` minibatches; a stage of r replicas updates when its round
// of r minibatches is through (or, with update = step, all stages after every lcm(r)), replicas
// that had none in a last short round joining with nothing. Throws kInvalidArgument when plan and
// schedule disagree on stages or places, kUnsupported when the policy does not fit.
//
// Order: RECV directly before the action that uses it, SEND directly after the one that makes it,
// one message for each microbatch of a range and each link, ascending. With a flush the list ends
// with the REDUCEs of the rank's stages that have replicas and then their STEPs; without, those of
// one stage follow the SEND_B of the round's last backward on the rank. REDUCE and STEP carry the
// microbatches they apply, over all replicas. Versions are relative: the first read is 0 and the
// first STEP makes 1.
//
// With `clips` one NORM of the same microbatches stands between a rank's REDUCEs and its STEPs,
// where all ranks learn the norm of the whole gradient. Refused (kUnsupported) without a flush on
// more than one stage.
//
// With the plan's `shard` stages of several replicas are rewritten as shard.h says.
LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps,
                      const std::vector<StageLink>& links, bool clips = false);
// Stages that form a chain.
LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps);
// A plan without layers whose ranks are the schedule's positions.
Plan plan_of_positions(const Schedule& schedule);
// The same with rank = position (for `millrace schedule` and slots).
LoweredSchedule lower(const Schedule& schedule, int64_t num_steps);

// Forward-only program for evaluation: microbatches 0..num_microbatches-1 in order through the
// plan's stages, replica i of r taking microbatches i, i + r, i + 2r, ... Its policy is empty,
// which marks a forward-only program, and no action has a weight version. One step of all
// microbatches, so that the interpreter asks once.
LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches,
                                 const std::vector<StageLink>& links);
LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches);

}  // namespace millrace
