// What planners without replicas of their own choice share: a number of stages that is given, not
// searched, and the plan of stages that follow each other in the profile's order. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "millrace/planner/planner.h"

namespace millrace::internal {

// Replicas of each stage, one entry a stage. The request's stages and replicas where it names them;
// else 1 replica, and as many stages as the workers and layers allow.
std::vector<int> given_replicas(const PlanRequest& request);

// Stage s holds the layers before ends[s] that no earlier stage holds; ranks follow each other.
Plan plan_of_runs(const Profile& profile, const std::vector<int>& ends,
                  const std::vector<int>& replicas);

// The number of stages asked for, of a planner that gives each stage one device; nothing when it is
// free. Throws Error(kInvalidArgument) for replicas, naming the planner.
std::optional<int> straight_stages(const PlanRequest& request, const char* planner);

}  // namespace millrace::internal
