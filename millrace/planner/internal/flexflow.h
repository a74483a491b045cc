// FlexFlow's planner, its placement on runs of devices or free: what builtin/flexflow.cc and
// builtin/flexflow_free.cc share.
#pragma once

#include "millrace/planner/planner.h"

namespace millrace::internal {

// `name` is the planner's, for messages. Throws kInvalidArgument for a request with restrictions.
Plan plan_by_flexflow(const PlanRequest& request, const char* name, bool free_placement);

}  // namespace millrace::internal
