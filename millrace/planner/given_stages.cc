#include "millrace/planner/internal/given_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {

std::vector<int> given_replicas(const PlanRequest& request) {
  if (request.replicas.size() > 1) {
    return request.replicas;
  }
  const int replicas = request.replicas.empty() ? 1 : request.replicas[0];
  const int stages = request.stages.value_or(
      std::min(request.workers / replicas, static_cast<int>(request.profile.layers.size())));
  return std::vector<int>(static_cast<std::size_t>(stages), replicas);
}

Plan plan_of_runs(const Profile& profile, const std::vector<int>& ends,
                  const std::vector<int>& replicas) {
  Plan plan;
  int layer = 0;
  int rank = 0;
  for (std::size_t s = 0; s < ends.size(); ++s) {
    PlanStage stage;
    for (; layer < ends[s]; ++layer) {
      stage.layers.push_back(profile.layers[static_cast<std::size_t>(layer)].name);
    }
    for (int r = 0; r < replicas[s]; ++r) {
      stage.ranks.push_back(rank++);
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

std::optional<int> straight_stages(const PlanRequest& request, const char* planner) {
  for (const int replicas : request.replicas) {
    if (replicas != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("planner `{}` gives every stage one device, found {} replicas; drop "
                              "them or use planner `pipedream`",
                              planner, replicas));
    }
  }
  if (request.replicas.size() > 1) {
    return static_cast<int>(request.replicas.size());
  }
  return request.stages;
}

}  // namespace millrace::internal
