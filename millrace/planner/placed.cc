#include "millrace/planner/placed.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

Plan make_placed_plan(const std::string& planner, const PlanRequest& request,
                      const std::string& schedule, const ScheduleConfig& config,
                      PlacedStages* known) {
  MILLRACE_CHECK(!request.stages && request.replicas.empty(), "the schedule says both");
  const Schedule made = make_schedule(schedule, config);
  const auto num_layers = static_cast<int>(request.profile.layers.size());
  if (made.num_stages > num_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {} has {} stages on {} ranks a copy, and the model has {} "
                            "layers; use fewer workers or chunks, or more replicas",
                            schedule, made.num_stages, config.num_ranks, num_layers));
  }
  // One device a stage: the planner weighs stages, not ranks.
  Cluster devices = request.cluster;
  devices.links.clear();
  devices.relative_speed = {1.0};
  devices.memory_bytes = std::numeric_limits<double>::max();
  devices.levels.resize(1);
  devices.levels.front().size = made.num_stages;
  PlanRequest chain{.profile = request.profile,
                    .cluster = devices,
                    .workers = made.num_stages,
                    .stages = made.num_stages,
                    .replicas = {1},
                    .straight = true};
  // All layers on every worker: as units of equal time.
  const bool whole = planner == "data-parallel" && config.num_ranks == 1;
  PlacedStages none;
  PlacedStages& plans = known != nullptr ? *known : none;
  if (!plans.contains(made.num_stages)) {
    plans.emplace(made.num_stages, make_plan(whole ? "equal-time" : planner, chain));
  }
  Plan plan = plans.at(made.num_stages);
  plan.planner = planner;
  const Plan alone = make_plan("one", {.profile = request.profile,
                                       .cluster = request.cluster,
                                       .workers = request.workers,
                                       .stages = {},
                                       .replicas = {},
                                       .straight = false});
  plan.data_parallel_minibatch_s = alone.data_parallel_minibatch_s;
  plan.one_worker_minibatch_s = alone.one_worker_minibatch_s;
  plan.workers = request.workers;
  plan.schedule = schedule;
  plan.microbatches = config.num_microbatches;
  plan.memory.clear();
  // The formula is of one stage a device; what these ranks do together it does not know.
  plan.minibatch_s = 0;
  plan.objective_s = 0;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    plan.stages[stage].ranks = made.stage_ranks[stage];
  }
  return plan;
}

}  // namespace millrace
