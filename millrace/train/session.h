// Session: a model spread over the ranks of a world, trained and evaluated segment by segment. Each
// process of the world has a session of the same setup, whose calls are made in the same order
// everywhere; each runs its own ranks.
//
// Used from one thread; the ranks run on threads of their own inside the calls and are joined
// before a call returns.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/core/plan.h"
#include "millrace/core/run_config.h"
#include "millrace/core/schedule.h"
#include "millrace/core/trace.h"
#include "millrace/data/dataset.h"
#include "millrace/data/order.h"
#include "millrace/model/model.h"
#include "millrace/runtime/worker.h"
#include "millrace/train/coordination.h"
#include "millrace/train/emulation.h"

namespace millrace {

struct SessionSetup {
  const Model* model = nullptr;  // outlives the session
  // With plan.workers ranks; outlives the session, and is of no use after it failed. Null: a world
  // of this process alone, with `timeout_s`.
  World* world = nullptr;
  Plan plan;
  std::string policy;       // empty: the schedule's own
  double blend_lambda = 1;  // of policy blend
  TrainConfig train;
  double timeout_s = 60;                       // deadline of every wait on another rank
  bool on_demand = false;                      // [parallel] deal; one process only
  bool divide_twice = false;                   // `verify --break scale`
  const EmulationConfig* emulation = nullptr;  // null: real devices; read by the constructor only
  bool measures_stash = false;                 // for Worker::peak_stash_bytes
  // Called before every action of training, on its rank's thread, if set; for tests.
  std::function<void(int rank, const Action& action)> before_action{};
};

// One parameter, buffer or optimizer tensor by its lasting name: "conv1.weight",
// "bn1.running_mean", "conv1.weight/velocity", "conv1.weight/updates" (a single float64).
struct NamedTensor {
  std::string name;
  std::string layer;
  at::Tensor tensor;  // shares memory with the session's buffers
};

// What the calling thread does while ranks train.
struct StepHooks {
  std::function<void(int64_t step, const LossSums& sums)>
      on_step{};  // step within the call, from 0
  // Norm of the mean gradient before clipping, with clip_norm; before on_step of the same step.
  std::function<void(int64_t step, double gradient_norm)> on_norm{};
  std::function<bool()> stop_requested{};  // polled several times a second
  // The step under way, within the call: the furthest that a rank of this process has entered, -1
  // before the first. Several times a second, in every process. May be empty.
  std::function<void(int64_t step)> on_alive{};
  // Who has been waiting for long, and for what: told every few seconds. May be empty.
  std::function<void(const std::string& text)> on_wait{};
};

class Session {
 public:
  explicit Session(const SessionSetup& setup);
  ~Session();

  // Trains steps [first_step, first_step + num_steps) of an epoch's order and drains. Returns the
  // steps done, the same in all processes: fewer when a stop was requested in one of them, then a
  // multiple of the replicas' rounds. Steps are told in the leading process only. Throws the first
  // cause when a rank fails; the session is unusable afterwards.
  int64_t train(const Dataset& dataset, const SampleOrder& order, int64_t epoch, int64_t first_step,
                int64_t num_steps, const StepHooks& hooks, UpdateObserver* observer = nullptr);

  // Every sample exactly once, `batch` at a time, through the pipeline, on the weights that the
  // replicas agree on; sums over all, in every process. Training then goes on from its own.
  LossSums evaluate(const Dataset& dataset, int64_t batch,
                    const std::function<bool()>& stop_requested = {});

  // Whether any process says yes.
  bool agree(bool own);

  // All weights, as the replicas agree on them, and what the optimizer keeps for each, in model
  // order, then all buffers, from replica 0 of each stage; parts of split layers joined. Replicas
  // hold the average of their buffers afterwards. In a process that does not lead: what its ranks
  // bring, parts by themselves.
  std::vector<NamedTensor> state();
  // Copies one tensor into every replica of this process, each part taking its own rows; false when
  // no stage here knows the name.
  // Shape and dtype must fit.
  bool load(const std::string& name, const at::Tensor& value);

  // Of everything trained so far, in every process. Of emulated devices, in their own seconds.
  Trace trace() const;
  // Its first steps, each rank's times a step (num_steps 1): Recorder::first_steps() of all ranks
  // of this process, once they have done them. Also from a hook of train().
  std::optional<Trace> first_steps() const;
  // Of all processes' ranks; between calls of train(), in every process.
  std::optional<Trace> all_first_steps() const;
  const World& world() const { return *world_; }
  // Of this process:
  const Worker& worker(int rank) const;
  // What the rank that holds the stage's replica, or that part of it, keeps.
  HeldStage& held(int stage, int replica = 0, int part = 0);

 private:
  void run(const std::function<void(int)>& work);
  int64_t run_segment(const TrainSegment& segment, StepBoard& board);
  void tell_waits(const StepHooks& hooks);
  void average_buffers();
  class SettledWeights;
  class WholeWeights;
  std::map<int, ShardedState::Whole> collect_shards();
  std::map<std::pair<int, int>, at::Tensor> settle();
  void gather_state(std::vector<std::vector<NamedTensor>>& parts, const std::string& names);
  int num_replicas(int stage) const;
  int rank_of(int stage, int replica, int part = 0) const;
  void join_parts(std::vector<std::vector<NamedTensor>>& parts) const;
  bool is_here(int rank) const;

  SessionSetup setup_;
  Schedule schedule_;  // made once: a schedule's file may change while a run lasts
  std::vector<StageLink> links_;
  std::unique_ptr<Emulation> emulation_;  // null: real devices
  std::unique_ptr<World> own_world_;      // null: the setup's
  World* world_;
  std::unique_ptr<Coordination> coordination_;
  std::vector<int> ranks_;                                    // of this process, used ones
  std::vector<std::unique_ptr<Communicator>> communicators_;  // by rank; null when idle
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<int64_t> segment_starts_;
  int64_t steps_done_ = 0;
  double waits_told_s_ = 0;
};

// Indices of the model's layers that each stage of a plan holds, ascending. Throws
// Error(kInvalidArgument) for a layer that the model lacks.
std::vector<std::vector<int>> stage_layers(const Plan& plan, const Model& model);

}  // namespace millrace
