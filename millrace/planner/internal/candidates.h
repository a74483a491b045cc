// What planner `auto` compares: plans that are complete, schedule and microbatches included, each
// with a bound below its time. Used by builtin/automatic.cc and its tests. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "millrace/planner/planner.h"

namespace millrace::internal {

struct Candidate {
  Plan plan;  // rule and recompute as the request has them, else bsp and none
  // No simulated step is shorter: all computing of the busiest rank, and where stages follow one
  // another and there is a flush, what the first and the last microbatch take on the stages before.
  double bound_s = 0;
  double actions = 0;  // about so many are simulated
  // Of weights, gradient and optimizer state alone, on the rank that needs most.
  double weight_bytes = 0;
};

struct Candidates {
  std::vector<Candidate> all;         // by bound; among equals the simpler one first
  std::vector<std::string> left_out;  // planners that were not asked, and why
};

// Stages by every planner that keeps the request's restrictions, under every schedule whose
// backward reads the weights of its forward, in 1, 2, 4, ... microbatches and as many as the
// pipeline is deep, and twice that; and stages by planner `pipedream` put on the places of
// schedules that hold several a rank or run in copies. Planners that take long are left out where
// layers and workers are many.
Candidates candidates_for(const PlanRequest& request);

}  // namespace millrace::internal
