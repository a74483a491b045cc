// The tie rule of the partition search. Used by partition.cc only.
#pragma once

#include <vector>

#include "millrace/planner/internal/inner_plans.h"

namespace millrace::internal {

// Among the partitions no term of which exceeds `limit_s`, of which there must be one, the one with
// the fewest workers, then the fewest stages, then the earliest cuts, then the fewest components of
// the outermost level. Ranks are dealt out from 0 up, outer components first.
// Does not set minibatch_s and conservative.
Partition preferred_partition(const PartitionProblem& problem, const PartitionCosts& costs,
                              InnerPlans& plans, double limit_s);

}  // namespace millrace::internal
