// FlexFlow's planner with free placement: the parts of an operator may be on any different devices,
// not only on a run of them. A larger space, in which a search of the same length often finds less.
//
// Source: "Beyond Data and Model Parallelism for Deep Neural Networks" (FlexFlow), SysML 2019,
// section 4, whose configurations name any device for each part.
#include "millrace/planner/internal/flexflow.h"

namespace millrace::builtin_planners {

Plan flexflow_free(const PlanRequest& request) {
  return internal::plan_by_flexflow(request, "flexflow-free", true);
}

}  // namespace millrace::builtin_planners
