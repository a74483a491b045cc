// The simulator: discrete events over a lowered schedule, the costs of its stages, a cluster and a
// rule. It executes the same actions as the runtime, runs the same Rule objects, and writes the
// same Trace. Deterministic; no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/core/schedule.h"
#include "millrace/core/trace.h"
#include "millrace/rule/rule.h"

namespace millrace {

// A part of a stage's gradient that is final before the backward ends.
struct GradientPiece {
  Range range;           // elements of the stage's flat buffer
  double done = 1;       // fraction of a B's duration after which it is final
  double half_done = 1;  // the same of a W's
  bool operator==(const GradientPiece&) const = default;
};

// What one microbatch costs on one replica of a stage, on a device of relative speed 1.
struct StageCost {
  double forward_s = 0;
  double input_gradient_s = 0;
  double weight_gradient_s = 0;
  double update_s = 0;       // once a step; of a sharded stage: of one replica's shard
  int64_t output_bytes = 0;  // of the last layer, for links without bytes of their own (below)
  int64_t parameter_bytes = 0;
  double recompute_s = 0;  // of the forward that a backward (or I) runs again first
  // Alive of one microbatch: from its F to its B (or I), during that besides, and from I to W.
  int64_t stash_bytes = 0;
  int64_t recomputed_bytes = 0;
  int64_t kept_bytes = 0;
  // For rules that overlap, in the order of becoming final, which is from the last layer to the
  // first; together all elements. Empty: everything at the end.
  std::vector<GradientPiece> pieces{};
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

// A rule that the registry does not know.
struct OwnRule {
  std::function<std::unique_ptr<Rule>(const RuleConfig&)> make;
  RuleTraits traits{};
};

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
  Value rule_options = Value::map();  // an object, as settle_rule() takes it
  std::vector<int> node_of_rank{};    // see Port::node_of; empty: all on one
  uint64_t seed = 1;                  // of the rule's random draws
  double batch = 1;                   // samples a step
  std::optional<OwnRule> own_rule{};  // in place of `rule`
  // Computing (F, B, I, W) of a rank in a step of its own, counted from 0, lasts so many times as
  // long; empty: 1.
  std::function<double(int rank, int64_t step)> slowdown{};
  // The replicas' parts of all steps go one by one, in the order of steps, to whichever replica
  // asks first (of several at one time, the lowest), so that a fast replica does more steps of its
  // own than a slow one; it ends when no part is left. Replica k of every stage makes one copy of
  // the model, whose n-th steps work on one part. Microbatches and versions in the trace are
  // numbered by own steps. Error(kUnsupported) without a flush, or where the stages' replicas make
  // no such copies, each with as many microbatches.
  bool on_demand = false;
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
  double step_s = 0;           // makespan with a flush; steady period without; see simulate()
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
// updates count (and the rule's finish(), where that step is the only one); without, it is the
// steady period: the time between the ends of successive minibatches' last backward, averaged over
// the second half of the segment's steady part (minibatches before or after which the pipeline is
// not full are left out; a segment too short to have any gives the average over all of it).
// Where one step does not stand for all - several steps with a flush, replicas, and a rule that
// does not keep them equal, does not sum each update's gradients, or has a server - the window is
// of all steps, and step_s their mean period over the later two thirds, by when the last rank has
// done a step. With parts on demand the same holds under any rule, by when as many parts as steps
// have are done, whichever they are.
//
// Sends do not block; a link carries one message at a time in each direction for bytes / bandwidth,
// and it arrives the latency later. Which link that is, core/links.h says: all devices of a machine
// share its own. Each action costs the cluster's action_overhead_s besides.
//
// The rule's own objects run, one for each replica of a stage that has several: begin() before the
// rank's first action, gradients_ready() at REDUCE, step() at STEP, finish() after the last action,
// serve() beside member 0 and on its device from time 0 on. They reduce and send messages as
// rule/port.h says: a reduction starts when the last member asks for it, or when the links between
// its members are free, and takes all_reduce_s; those in the background of one replica follow one
// another; a message goes over the links that tensors take, unless server and worker stand on one
// device. An update lasts update_s; for the rule's own passes over vectors see
// internal/rule_port.h. What a task waits for others is its
// action's wait_s, what it sends and reduces its bytes. For a rule that overlaps, pieces of a
// gradient become ready during the last backward of an update, which takes no longer for it.
// What the rule keeps in vectors of its own is not part of the memory.
//
// Memory: a stash lives from the start of its F to the end of its B (or W); a received tensor from
// its RECV to the end of the action that consumes it; a sent one from its SEND to the end of the
// peer's RECV; a weight version from the start of the STEP that makes it to the end of its last
// reader (in place when the old one has none left).
//
// Sharded stages (see schedule/shard.h) have no rule. GATHER and REDUCE send every other replica
// its part over the links that tensors take, and end when all parts are here; where the speed of
// reductions was measured (the cluster's all-reduce, or all_reduce_s), they start when the last
// replica asks and take half of such a reduction's time. Replicas hold 1/P of what is sharded; the
// rest is there from the start of a GATHER to the end of its FREE, and of gradients from the start
// of the first B or W of a run to the end of its REDUCE. Throws Error(kInvalidArgument): with the
// grid when it deadlocks or a tensor is never received; when costs, ranks or num_steps do not fit
// the schedule and the cluster. Errors of the rule pass through.
Simulation simulate(const SimulationInput& input);

// Minibatches of a schedule without a flush after which its steady period shows: at least 4 x ranks
// + 40 and 8 rounds of all replicas, in whole rounds as long as that stays below a few thousand.
int64_t steady_steps(int num_ranks, int64_t round_steps);

// Steps of a flush schedule that show what a step takes: 1, or 60 where one does not stand for all
// (see simulate). Of `rule` by name.
int64_t representative_steps(const LoweredSchedule& lowered, const std::string& rule);

// What a run adds to its plan; see SimulationInput for members of the same name.
struct PlanSimulation {
  std::string policy{};  // empty: the schedule's own
  int optimizer_buffers = 1;
  bool clips = false;  // as for lower
  AllReduceSeconds all_reduce_s{};
  std::vector<int> node_of_rank{};
  uint64_t seed = 1;
  bool overlaps = true;  // gradients become final layer by layer, and not with the whole backward
  bool on_demand = false;
  std::function<double(int rank, int64_t step)> slowdown{};
  // All steps of a run, so that the trace's window_s is what the run takes, its beginning and end
  // included; absent: as many as show what a step takes.
  std::optional<int64_t> num_steps{};
};

// Builds, lowers and simulates a plan: what `plan`, `simulate` and `train` print. `batch` is the
// global minibatch. Without a flush at least 4 x used ranks + 40 minibatches and 8 rounds of all
// replicas are run, enough to reach the steady period; with one, representative_steps(). Errors of
// make_schedule and lower pass through.
Simulation simulate_plan(const Plan& plan, const Profile& profile, const Cluster& cluster,
                         int64_t batch, const PlanSimulation& run = {});

}  // namespace millrace
