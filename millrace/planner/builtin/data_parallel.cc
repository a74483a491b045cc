// All layers on every worker: one stage, `workers` replicas.
#include <fmt/format.h>

#include <numeric>

#include "millrace/base/error.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {

Plan data_parallel(const PlanRequest& request) {
  const int stages = request.stages.value_or(
      static_cast<int>(request.replicas.size() > 1 ? request.replicas.size() : std::size_t{1}));
  const int replicas = request.replicas.empty() ? request.workers : request.replicas[0];
  if (stages != 1 || replicas != request.workers || (request.straight && request.workers > 1)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "planner `data-parallel` makes 1 stage with a replica on each of the {} workers, "
            "found stages = {}, replicas = {}{}; drop them or use planner "
            "`pipedream`",
            request.workers, stages, replicas, request.straight ? ", straight" : ""));
  }
  PlanStage stage;
  for (const LayerProfile& layer : request.profile.layers) {
    stage.layers.push_back(layer.name);
  }
  stage.ranks.resize(request.workers);
  std::iota(stage.ranks.begin(), stage.ranks.end(), 0);
  Plan plan;
  plan.stages = {stage};
  return plan;
}

}  // namespace millrace::builtin_planners
