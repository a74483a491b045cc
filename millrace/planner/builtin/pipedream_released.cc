// The planner that PipeDream's authors released, whose cost differs from the paper's: computing and
// exchanging add up, activations cost nothing, and all workers are used. For comparison with what
// it is known to answer; `pipedream` is the paper's.
//
// Source: repository msr-fiddle/pipedream, optimizer/optimizer_graph_hierarchical.py. The released
// code reaches its cuts by walking antichains and may miss some on branching graphs; here all cuts
// are searched, so the answer is never slower. objective_s is its cost, minibatch_s the paper's.
#include <fmt/format.h>

#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/released.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {

Plan pipedream_released(const PlanRequest& request) {
  if (request.stages || !request.replicas.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "planner `pipedream-released` chooses stages and replicas itself, found stages or "
                "replicas that are asked for; drop them, or use planner `pipedream`");
  }
  const internal::Cuts cuts(request.profile);
  const internal::Network network = internal::network_of(request.cluster, request.workers);
  const std::optional<internal::Partition> partition =
      internal::released_partition({cuts, network, request.straight});
  if (!partition) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("planner `pipedream-released` uses every worker, and the {} layers have "
                    "fewer stages than there are workers ({}); use fewer workers, or "
                    "planner `pipedream`",
                    request.profile.layers.size(), request.workers));
  }
  Plan plan = internal::plan_of(*partition, cuts, request.profile);
  if (partition->conservative) {
    plan.notes.emplace_back(
        "more than 400 cuts: objective_s is an upper bound of what the released optimizer's cost "
        "allows");
  }
  return plan;
}

}  // namespace millrace::builtin_planners
