// Planners: Profile + Cluster -> Plan. One file a planner under builtin/, one line in builtin.def.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/sim/simulate.h"

namespace millrace {

// One of the plans that planner `auto` compared.
struct RankedPlan {
  Plan plan;
  double step_s = 0;   // simulated
  std::string reason;  // what its step consists of
};

// A planner's question. Restrictions left empty are the planner's to choose.
struct PlanRequest {
  const Profile& profile;     // of one whole minibatch
  const Cluster& cluster;     // at least `workers` devices
  int workers = 1;            // devices 0..workers-1 may be used
  std::optional<int> stages;  // exactly so many
  std::vector<int> replicas;  // one number for all stages, or one a stage
  bool straight = false;      // at most one worker a stage
  // What the plan will run under. Left empty, it is the planner's to choose where it chooses such
  // things (PlannerEntry::chooses_run), and else unknown to it.
  std::optional<std::string> schedule{};
  std::optional<std::string> rule{};
  std::optional<int> microbatches{};  // as Plan's
  std::optional<Recompute> recompute{};
  Value rule_options = Value::map();  // of `rule`
  // What a run adds: optimizer state, which counts as memory, and what simulated plans need.
  PlanSimulation run{};
  // Why a plan cannot run for a reason that its profile does not show, or nothing; may be empty.
  std::function<std::optional<std::string>(const Plan&)> refuses{};
  // Told of the best plans, best first, by a planner that ranks several; may be empty.
  std::function<void(const RankedPlan&)> ranked{};
};

struct PlannerEntry {
  std::string name;
  std::string text;
  std::string source;  // the paper
  Plan (*make)(const PlanRequest&);
  // Sets the plan's schedule, microbatches, recompute and rule where the request leaves them free.
  bool chooses_run = false;
};

const std::vector<PlannerEntry>& planners();
// Throws Error(kInvalidArgument) with the nearest known name.
const PlannerEntry& find_planner(const std::string& name);

// Checks the request (workers >= 1 and at most the cluster's devices, stages at most layers and
// workers, replicas fit; else kInvalidArgument with both numbers), calls the planner, fills
// `planner`, `workers`, minibatch_s, data_parallel_minibatch_s and one_worker_minibatch_s by the
// formula below, objective_s by the same where the planner has none of its own, and checks the
// result against the profile's layers and edges. A plan may leave workers idle. Schedule, rule,
// microbatches and recompute are the request's; those left empty keep Plan's defaults, but for a
// planner that chooses them.
Plan make_plan(const std::string& planner, const PlanRequest& request);

// The formula of PipeDream, SOSP'19, section 3.1: seconds per minibatch of a plan. On one network
// level, whose stage s computes T_s seconds, holds W_s parameter bytes on m_s replicas and hands
// a_s bytes on, it is the max over stages of max(T, 2(m-1)W/B)/m and over cuts of 2a/B. On several
// levels the outermost comes first: neighbouring stages on the same components are one group on m
// of them, T is then what one of these takes by the same formula on the level below, and B is the
// level's. A plan that does not follow the levels so (a stage on one machine and half of another)
// is costed as if all links were as slow as the slowest level's.
//
// T sums the layers' forward and backward seconds in the plan's order and divides by the relative
// speed of the slowest of devices 0..plan.workers-1; B is the bandwidth of the level's slowest link
// between any two of them; a sums the outputs of layers, each once, that a later stage consumes.
// Latencies and updates are not in the paper's formula; the simulator counts both. Throws
// kInvalidArgument when a layer is not in the profile.
double pipedream_minibatch_s(const Plan& plan, const Profile& profile, const Cluster& cluster);

}  // namespace millrace
