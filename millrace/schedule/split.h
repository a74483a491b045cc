// Split layers as a pass over a lowered schedule: all parts of a replica run one list in lockstep,
// each with peers of its own part, so what holds of the schedule without parts holds of each. Used
// by lowering, simulator, sessions and `verify`. Pure functions.
//
// Replicas of parts are the data and model parallelism of Shrivastava et al., "A Data and
// Model-Parallel, Distributed and Scalable Framework for Training of Deep Networks in Apache
// Spark", 2017; how they compose with pipelines and rules is ours.
#pragma once

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"

namespace millrace {

// The plan as the ranks of one part see it: split_parts is 1, and other parts' ranks are idle. An
// unsplit plan itself. Throws Error(kInvalidArgument) where a stage's ranks are no multiple of the
// parts.
Plan plan_of_part(const Plan& plan, int part);

// Every rank of an unsplit plan becomes `parts` ranks, one beside another.
Plan split_plan(const Plan& plan, int parts);

// For each part, the rank of it that stands where a rank of part 0 does; -1 for other ranks. Throws
// Error(kInvalidArgument) where stages disagree on that.
std::vector<std::vector<int>> ranks_of_parts(const Plan& plan);

// What was lowered for plan_of_part(plan, 0), with every list copied to the other parts, whose
// messages go to ranks of the same part.
LoweredSchedule split_lists(LoweredSchedule lowered, const Plan& plan);

}  // namespace millrace
