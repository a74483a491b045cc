// PipeDream's planner: cuts a layer graph into consecutive stages and gives each a number of
// replicas, level by level of the network, so that the slowest stage, gradient exchange and border
// transfer are as fast as can be.
//
// Source: "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1.
// The paper leaves open what happens among plans of equal time and whether every worker must be
// used. Here workers may stay idle on every level, and ties go to fewer workers, then fewer stages,
// then earlier cuts. On a graph that is no chain a stage ends at a cut: every tensor with a
// consumer behind the cut crosses it, once; a skip counts at every cut that it passes. With unequal
// devices every stage is costed at the slowest one's speed: which device gets which stage is not
// searched, so nothing better could be promised. Replicas that the request names say nothing of
// levels: they are planned on one, with the slowest links. A device's memory holds the weights of
// each minibatch in flight with its stash, and a gradient.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/planner/internal/partition_costs.h"
#include "millrace/planner/planner.h"

namespace millrace::builtin_planners {
namespace {

bool all_ones(const std::vector<int>& replicas) {
  return std::all_of(replicas.begin(), replicas.end(), [](int r) { return r == 1; });
}

// All workers on one level, whose links are as slow as the slowest of any level.
internal::Network flattened(const internal::Network& network) {
  internal::Level flat = network.levels.front();
  for (std::size_t k = 1; k < network.levels.size(); ++k) {
    flat.size *= network.levels[k].size;
    flat.bandwidth_bytes_per_s =
        std::min(flat.bandwidth_bytes_per_s, network.levels[k].bandwidth_bytes_per_s);
  }
  return {network.relative_speed, {flat}};
}

}  // namespace

Plan pipedream(const PlanRequest& request) {
  const internal::Cuts cuts(request.profile);
  internal::PartitionProblem problem{cuts, internal::network_of(request.cluster, request.workers),
                                     request.stages, request.replicas,
                                     request.cluster.memory_bytes};
  const bool several_levels = problem.network.levels.size() > 1;
  const bool flatten = several_levels && !all_ones(request.replicas);
  if (flatten) {
    problem.network = flattened(problem.network);
  }
  if (request.replicas.size() > 1) {
    problem.stages = static_cast<int>(request.replicas.size());
  }
  if (request.straight || (!request.replicas.empty() && all_ones(request.replicas))) {
    problem.replicas = {1};
  }
  const std::optional<internal::Partition> partition = internal::best_partition(problem);
  if (!partition) {
    const double least_bytes = internal::least_memory_bytes(problem);
    throw Error(
        ErrorCode::kInvalidArgument,
        least_bytes <= request.cluster.memory_bytes ||
                least_bytes == internal::PartitionCosts::kNever
            ? fmt::format("no plan of the {} layers on {} workers meets the restrictions; relax "
                          "stages or replicas",
                          request.profile.layers.size(), request.workers)
            : fmt::format(
                  "no plan on {} workers fits in memory: the least that one needs is {} a "
                  "worker, a device has {} (memory_bytes of the cluster); use more workers, "
                  "smaller minibatches or a larger device",
                  request.workers, format_bytes(least_bytes),
                  format_bytes(request.cluster.memory_bytes)));
  }

  Plan plan = internal::plan_of(*partition, cuts, request.profile);
  if (flatten) {
    plan.notes.emplace_back(
        "replicas were asked for: planned as if all links were as slow as the slowest network "
        "level's");
  }
  if (partition->conservative) {
    plan.notes.push_back(
        "memory was counted conservatively, minibatches in flight rounded up: a faster plan that "
        "fits may exist");
  }
  return plan;
}

}  // namespace millrace::builtin_planners
