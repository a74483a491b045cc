// Strategies that a plan can say: consecutive operators on the same devices, split by samples only,
// as stages with replicas. The one place where a strategy becomes a plan: what a plan learns to say
// (split layers) is to be taken over here. Used by FlexFlow's planner. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/planner/internal/soap.h"

namespace millrace::internal {

// Stage s holds the operators before ends[s] that no earlier stage holds, on the replicas[s]
// devices behind those of earlier stages.
struct SoapStages {
  std::vector<int> ends;
  std::vector<int> replicas;
  bool operator==(const SoapStages&) const = default;
};

Strategy strategy_of(const SoapProblem& problem, const SoapStages& stages);

// The stages of a strategy, devices numbered anew in their order; nothing when rows or channels are
// split, or when a device works for two stages.
std::optional<SoapStages> stages_of(const SoapProblem& problem, const Strategy& strategy);

// The stages of a plan, each of whose cuts is moved back to the nearest one between operators;
// nothing when its stages are not consecutive in the profile's order.
std::optional<SoapStages> stages_of(const SoapProblem& problem, const Profile& profile,
                                    const Plan& plan);

Plan plan_of(const SoapProblem& problem, const Profile& profile, const SoapStages& stages);

// "conv1..relu1: samples 4 on 0-3; fc1: channels 2 on 0-1": operators of one configuration that
// follow each other, together.
std::string describe(const SoapProblem& problem, const Profile& profile, const Strategy& strategy);

}  // namespace millrace::internal
