// As many layers in every stage as can be: N layers in S stages are N / S each, rounded down, and
// the first N mod S stages get one more. A baseline that looks at no cost; stages and replicas are
// the request's (given_replicas). On a graph that is no chain the stages follow the profile's
// order.
#include "millrace/planner/internal/given_stages.h"

namespace millrace::builtin_planners {

Plan equal_layers(const PlanRequest& request) {
  const std::vector<int> replicas = internal::given_replicas(request);
  const int num_layers = static_cast<int>(request.profile.layers.size());
  const int stages = static_cast<int>(replicas.size());
  std::vector<int> ends;
  for (int s = 1; s <= stages; ++s) {
    ends.push_back(num_layers / stages * s + std::min(s, num_layers % stages));
  }
  return internal::plan_of_runs(request.profile, ends, replicas);
}

}  // namespace millrace::builtin_planners
