// Prepare: from a checked run.toml to everything a run needs: data, model, cluster, profile, plan
// and its prediction. The prediction comes from a profile and a cluster that no step of the run has
// touched.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/joined/joined.h"
#include "millrace/core/cluster.h"
#include "millrace/core/events.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/core/run_config.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/sim/reductions.h"
#include "millrace/sim/simulate.h"
#include "millrace/train/emulation.h"

namespace millrace {

struct PrepareOptions {
  std::string cache_dir;   // where profiles and cluster measurements are kept; empty: no cache
  bool fresh = false;      // measure again even when cached
  double profile_s = 1.5;  // spent on each profile, at least
  EventSink* sink = nullptr;
  // Of several processes: all prepare at once, the leading one measures (and caches) for all, and
  // every one comes to the same plan. Null, or of one process: this one.
  JoinedWorld* world = nullptr;
};

// One row of the table that shows what was considered.
struct Alternative {
  std::string name;        // "this plan", "planner's free choice", "data parallel", "one worker"
  std::string plan;        // in words
  double predicted_s = 0;  // simulated step
  double objective_s = 0;  // the planner's formula
};

struct Job {
  RunConfig config;
  DataSplits data;
  Model model;
  Cluster cluster;
  Profile profile;  // of the microbatch part that a replica computes at a time
  Plan plan;
  int64_t num_split_replicas = 1;  // a minibatch is cut into microbatches x so many parts
  Simulation predicted;
  PlanSimulation simulated_as;  // what `predicted` was made by
  std::vector<Alternative> alternatives;
  std::vector<std::string> notes;            // e.g. that data parallel is predicted to be faster
  std::optional<EmulationConfig> emulation;  // of a run on devices that are not there
  // How gradients are summed between processes; null: there is one process.
  std::shared_ptr<const Reductions> reductions;

  const EmulationConfig* emulation_or_null() const { return emulation ? &*emulation : nullptr; }
};

// Data and model of a configuration, shapes checked (no measuring). dtype from [train]. With
// [emulate] profile the model is made from that.
void load_data_and_model(const RunConfig& config, Job& job);

// The whole preparation. Every refusal comes before the first measurement where it can.
Job prepare(const RunConfig& config, const PrepareOptions& options);

// Seconds of an epoch's `num_steps` steps of this job, without evaluations: fill and drain, and
// what the rule does at the end, included.
double predict_epoch_s(const Job& job, int64_t num_steps);

// "batch 128 = 1 microbatch x 1 replica x 128 samples"; the plan; the table of alternatives; memory
// per rank; notes.
std::string describe(const Job& job);

}  // namespace millrace
