// The simulator: discrete events over a lowered schedule, the costs of its stages, a cluster and a
// rule. It executes the same actions as the runtime and writes the same Trace. Deterministic; no
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/core/schedule.h"
#include "millrace/core/trace.h"

namespace millrace {

// What one microbatch costs on one replica of a stage, on a device of relative speed 1.
struct StageCost {
  double forward_s = 0;
  double input_gradient_s = 0;
  double weight_gradient_s = 0;
  double update_s = 0;       // once a step
  int64_t output_bytes = 0;  // of the last layer, for links without bytes of their own (below)
  int64_t parameter_bytes = 0;
  double recompute_s = 0;  // of the forward that a backward (or I) runs again first
  // Alive of one microbatch: from its F to its B (or I), during that besides, and from I to W.
  int64_t stash_bytes = 0;
  int64_t recomputed_bytes = 0;
  int64_t kept_bytes = 0;
};

// Sums the profile over each stage's layers and scales it to the samples of one part (see
// samples_per_part), linearly from samples_per_microbatch (update_s and parameter_bytes are not
// scaled). With the plan's recompute a stash is what its stages or layers take from layers before
// (the data's own samples are not counted), and while a backward runs all of it is there, or that
// of the layer at hand. Throws when a plan's layer is not in the profile.
std::vector<StageCost> stage_costs(const Plan& plan, const Profile& profile,
                                   double samples_per_part);

// Bytes that each link of the plan carries forward for a part; as many come back as gradients.
// Every tensor is sent once to each stage that uses it.
std::vector<int64_t> link_bytes(const Plan& plan, const Profile& profile,
                                const std::vector<StageLink>& links, double samples_per_part);

// Samples that a replica computes at a time: a step's batch dealt out over the schedule's
// microbatches of a step.
double samples_per_part(const Schedule& schedule, int64_t batch);

// f and b slots: F lasts f, B lasts b, its halves b/2 each; messages, updates and reductions cost
// nothing.
std::vector<StageCost> slot_costs(int num_stages, double f, double b);

// Seconds of an all-reduce of so many bytes over these ranks, from when the last one asks for it.
// Empty: Cluster::all_reduce_s, a ring.
using AllReduceSeconds = std::function<double(const std::vector<int>& ranks, double bytes)>;

struct SimulationInput {
  const LoweredSchedule& lowered;
  std::vector<StageCost> costs;  // one a stage
  const Cluster& cluster;
  std::string rule = "bsp";
  int64_t num_steps = 1;      // repeats of a flush schedule; else at most what was lowered
  int optimizer_buffers = 1;  // parameter-sized buffers of optimizer state (SGD with momentum: 1)
  // Of each of lowered.links; empty: the output_bytes of the stage it comes from.
  std::vector<int64_t> link_bytes{};
  AllReduceSeconds all_reduce_s{};
};

// One world rank. Of an idle rank everything is 0 but bubble_fraction, which is 1 when there is a
// window.
struct RankSimulation {
  double busy_s = 0;  // computing (F, B, I, W, with the actions' overhead), inside the window
  double bubble_fraction = 0;  // idle / window
  int64_t peak_stash_bytes = 0;
  int peak_in_flight = 0;        // (stage, microbatch) pairs whose F ran and whose B (W) has not
  int peak_weight_versions = 0;  // of the stage that needs most
  MemoryUse memory;              // each part's own peak; workspace is not simulated
};

// Bytes alive on a rank after a change, for the report's memory curve; times never fall.
struct MemoryPoint {
  double time_s = 0;
  int64_t bytes = 0;
};

struct Simulation {
  double step_s = 0;           // makespan with a flush; steady period without
  double window_s = 0;         // first start to last end of computing in the measured window
  double bubble_fraction = 0;  // idle over ranks x window (used ranks)
  double idle_slots = 0;       // idle seconds over ranks; slots when costs are slots
  double total_slots = 0;      // ranks x window
  std::vector<RankSimulation> ranks;
  std::vector<std::vector<MemoryPoint>> memory;  // one a rank
  Trace trace;  // all steps; its window_s spans all actions, not only computing
};

// The window is from the first start to the last end of compute actions over used ranks, with a
// flush of ONE step, the first (the trace may hold more); without a flush, of the whole segment.
// step_s with a flush is the first step's makespan over ALL its actions, so that reductions and
// updates count; without, it is the steady period: the time between the ends of successive
// minibatches' last backward, averaged over the second half of the segment's steady part
// (minibatches before or after which the pipeline is not full are left out; a segment too short to
// have any gives the average over all of it). Sends do not block; a link carries one message at a
// time in each direction (device pair's queue) for bytes / bandwidth, and it arrives the latency
// later. Each action costs the cluster's action_overhead_s besides. An all-reduce that the rule
// asks for starts when the last replica asks for it and takes all_reduce_s. Memory: a
// stash lives from the start of its F to the end of its B (or W); a received tensor from its RECV
// to the end of the action that consumes it; a sent one from its SEND to the end of the peer's
// RECV; a weight version from the start of the STEP that makes it to the end of its last reader (in
// place when the old one has none left). Throws Error(kInvalidArgument): with the grid when it
// deadlocks or a message is never received; when costs, ranks or num_steps do not fit the schedule
// and the cluster.
Simulation simulate(const SimulationInput& input);

// Minibatches of a schedule without a flush after which its steady period shows: at least 4 x ranks
// + 40 and 8 rounds of all replicas, in whole rounds as long as that stays below a few thousand.
int64_t steady_steps(int num_ranks, int64_t round_steps);

// Builds, lowers and simulates a plan: what `plan`, `simulate` and `train` print. `batch` is the
// global minibatch; `policy` empty means the schedule's own. Without a flush at least 4 x used
// ranks + 40 minibatches and 8 rounds of all replicas are run, enough to reach the steady period.
// `optimizer_buffers` as in SimulationInput, `clips` as for lower. Errors of make_schedule and
// lower pass through.
Simulation simulate_plan(const Plan& plan, const Profile& profile, const Cluster& cluster,
                         int64_t batch, const std::string& policy = "", int optimizer_buffers = 1,
                         bool clips = false, const AllReduceSeconds& all_reduce_s = {});

}  // namespace millrace
