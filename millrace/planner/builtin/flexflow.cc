// FlexFlow's planner: a degree of parallelism over samples, attributes (rows) and parameters
// (channels) and a run of devices for each operator, by a Markov chain over such strategies whose
// costs are simulated on the iteration's task graph.
//
// Source: "Beyond Data and Model Parallelism for Deep Neural Networks" (FlexFlow), SysML 2019. What
// of it is reconstructed stands in the headers of planner/internal/: soap (dimensions and bytes),
// task_graph (tasks, delta simulation), soap_search (proposals). Starts are data parallelism, one
// worker and PipeDream's plan. A plan says stages and replicas only, so it holds the best strategy
// of this form, for which a chain of its own looks; the best of all is told in a note, operator by
// operator. Its cost is that of one iteration on its own: pipelining over minibatches, updates and
// memory are not counted.
#include "millrace/planner/internal/flexflow.h"

namespace millrace::builtin_planners {

Plan flexflow(const PlanRequest& request) {
  return internal::plan_by_flexflow(request, "flexflow", false);
}

}  // namespace millrace::builtin_planners
