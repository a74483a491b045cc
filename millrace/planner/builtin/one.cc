// All layers on rank 0; the other workers stay idle. What every plan is measured against.
#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {

Plan one(const PlanRequest& request) {
  const int stages = request.stages.value_or(
      static_cast<int>(request.replicas.size() > 1 ? request.replicas.size() : std::size_t{1}));
  const int replicas = request.replicas.empty() ? 1 : request.replicas[0];
  if (stages != 1 || replicas != 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("planner `one` makes 1 stage of 1 replica, found stages = {}, replicas = {}; "
                    "drop them or use planner `pipedream`",
                    stages, replicas));
  }
  PlanStage stage;
  for (const LayerProfile& layer : request.profile.layers) {
    stage.layers.push_back(layer.name);
  }
  stage.ranks = {0};
  Plan plan;
  plan.stages = {stage};
  return plan;
}

}  // namespace millrace::builtin_planners
