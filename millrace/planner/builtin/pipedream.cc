// PipeDream's planner on one network level: cuts a chain of layers into consecutive stages and
// gives each a number of replicas, so that the slowest stage, gradient exchange and border transfer
// are as fast as can be.
//
// Source: "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1.
// The paper leaves open what happens among plans of equal time and whether every worker must be
// used. Here workers may stay idle, and ties go to fewer workers, then fewer stages, then earlier
// cuts. The paper's hierarchy of levels is not part of this planner. With unequal devices every
// stage is costed at the slowest one's speed: which device gets which stage is not searched, so
// nothing better could be promised.
#include <fmt/format.h>

#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/partition.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {
namespace {

// Refuses workers that spread over several levels. A level of size 1 joins nothing and does not
// count.
void expect_one_level(const PlanRequest& request) {
  int64_t inner = 1;  // devices in one component of the level below
  for (const NetworkLevel& level : request.cluster.levels) {
    if (inner > 1 && request.workers > inner) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("planner `pipedream` plans on one network level, but {} workers spread over "
                      "components of {} devices; use at most {} workers, describe the "
                      "cluster by its slowest level alone, or write the plan by hand",
                      request.workers, inner, inner));
    }
    inner *= level.size;
  }
}

}  // namespace

Plan pipedream(const PlanRequest& request) {
  expect_one_level(request);
  internal::expect_chain(request.profile);

  internal::ChainProblem problem;
  for (const LayerProfile& layer : request.profile.layers) {
    problem.layers.push_back({layer.compute_s(), layer.parameter_bytes, layer.output_bytes});
  }
  problem.network = internal::flat_network(request.cluster, request.workers);
  problem.workers = request.workers;
  problem.stages = request.stages;
  problem.replicas = request.straight ? std::vector<int>{1} : request.replicas;
  if (request.replicas.size() > 1) {
    problem.stages = static_cast<int>(request.replicas.size());
    problem.replicas = request.replicas;
  }

  Plan plan;
  int rank = 0;
  for (const internal::ChainStage& cut : internal::best_partition(problem).stages) {
    PlanStage stage;
    for (int i = cut.first; i <= cut.last; ++i) {
      stage.layers.push_back(request.profile.layers[i].name);
    }
    for (int replica = 0; replica < cut.replicas; ++replica) {
      stage.ranks.push_back(rank++);
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace millrace::builtin_planners
