// Plans for schedules that put stages on ranks in their own way: several chunks a rank, both
// directions, equal copies.
#pragma once

#include <map>
#include <string>

#include "millrace/planner/planner.h"
#include "millrace/schedule/registry.h"

namespace millrace {

using PlacedStages = std::map<int, Plan>;  // by number of stages

// The planner's cut of the model into as many stages as the schedule has, each weighed as on a
// device of its own, put on the ranks that the schedule gives them. Says nothing of memory, which
// the simulator answers, and leaves minibatch_s and objective_s at 0: PipeDream's formula is of one
// stage a device. `request.stages` and `request.replicas` are the schedule's to say and must
// be empty. Throws what make_schedule and make_plan throw. `known`, which may be null, keeps what
// the planner answered for one planner and request, so that it is asked once for each number of
// stages.
Plan make_placed_plan(const std::string& planner, const PlanRequest& request,
                      const std::string& schedule, const ScheduleConfig& config,
                      PlacedStages* known = nullptr);

}  // namespace millrace
