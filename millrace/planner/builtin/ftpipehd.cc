// FTPipeHD's planner: stages of consecutive layers on devices of unequal speed and with links of
// unequal bandwidth, in the order in which the devices are listed, so that the slowest stage or
// border transfer is as fast as can be. Meant to be asked again with speeds that were measured
// (planner/measured_speeds.h).
//
// Source: "FTPipeHD: A Fault-Tolerant Pipeline-Parallel Distributed Training Framework for
// Heterogeneous Edge Devices", arXiv 2110.02781. Its recurrence gives every device a layer; here a
// device may stay idle (our change: one slow device would otherwise slow all), so that the state is
// the layers done and the last device used, and a transfer goes between neighbours in use. Among
// plans of least time the fewest devices are used. Memory is not asked for, as in the paper. On a
// graph that is no chain, layers stay in the profile's order.
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/planner/internal/device_chain.h"
#include "millrace/planner/internal/given_stages.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {

Plan ftpipehd(const PlanRequest& request) {
  const internal::Line line(request.profile, 1);
  const internal::ChainLinks links(line, request.cluster, request.workers, false);
  internal::ChainProblem problem{line, request.cluster, links};
  problem.order.resize(static_cast<std::size_t>(request.workers));
  std::iota(problem.order.begin(), problem.order.end(), 0);
  problem.stages = internal::straight_stages(request, "ftpipehd");
  internal::ChainSolver solver(problem);
  const std::optional<double> period_s = solver.least_limit();
  MILLRACE_CHECK(period_s, "stages were checked against layers and workers");
  const std::optional<internal::ChainSolution> solution =
      solver.solve(*period_s, internal::ChainSolver::Aim::kFewestStages);
  Plan plan = internal::plan_of(solution->stages, request.profile);
  plan.objective_s = *period_s;
  return plan;
}

}  // namespace millrace::builtin_planners
