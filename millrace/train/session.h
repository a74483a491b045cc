// Session: a model spread over the ranks of this process, trained and evaluated segment by segment.
//
// Used from one thread; the ranks run on threads of their own inside the calls and are joined
// before a call returns.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/comm/inproc/inproc.h"
#include "millrace/core/plan.h"
#include "millrace/core/run_config.h"
#include "millrace/core/schedule.h"
#include "millrace/core/trace.h"
#include "millrace/data/dataset.h"
#include "millrace/data/order.h"
#include "millrace/model/model.h"
#include "millrace/runtime/worker.h"
#include "millrace/train/emulation.h"

namespace millrace {

struct SessionSetup {
  const Model* model = nullptr;  // outlives the session
  Plan plan;
  std::string policy;       // empty: the schedule's own
  double blend_lambda = 1;  // of policy blend
  TrainConfig train;
  double timeout_s = 60;                       // deadline of every wait on another rank
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
};

class Session {
 public:
  explicit Session(const SessionSetup& setup);
  ~Session();

  // Trains steps [first_step, first_step + num_steps) of an epoch's order and drains. Returns the
  // steps done: fewer when a stop was requested, then a multiple of the replicas' rounds. Throws
  // the first cause when a rank fails; the session is unusable afterwards.
  int64_t train(const Dataset& dataset, const SampleOrder& order, int64_t epoch, int64_t first_step,
                int64_t num_steps, const StepHooks& hooks, UpdateObserver* observer = nullptr);

  // Every sample exactly once, `batch` at a time, through the pipeline; sums over all.
  LossSums evaluate(const Dataset& dataset, int64_t batch,
                    const std::function<bool()>& stop_requested = {});

  // All weights and what the optimizer keeps for each, in model order, then all buffers, from
  // replica 0 of each stage. Replicas hold the average of their buffers afterwards.
  std::vector<NamedTensor> state();
  // Copies one tensor into every replica; false when no stage knows the name. Shape and dtype must
  // fit.
  bool load(const std::string& name, const at::Tensor& value);

  // Of everything trained so far. Of emulated devices, in their own seconds.
  Trace trace() const;
  const Worker& worker(int rank) const;
  // What the rank that holds the stage's replica keeps of it.
  HeldStage& held(int stage, int replica = 0);

 private:
  void run(const std::function<void(int)>& work);
  void average_buffers();
  int num_replicas(int stage) const;

  SessionSetup setup_;
  Schedule schedule_;  // made once: a schedule's file may change while a run lasts
  std::vector<StageLink> links_;
  std::unique_ptr<Emulation> emulation_;  // null: real devices
  std::unique_ptr<InprocWorld> world_;
  std::vector<int> ranks_;                                    // used ones
  std::vector<std::unique_ptr<Communicator>> communicators_;  // by rank; null when idle
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<int64_t> segment_starts_;
  int64_t steps_done_ = 0;
};

// Indices of the model's layers that each stage of a plan holds, ascending. Throws
// Error(kInvalidArgument) for a layer that the model lacks.
std::vector<std::vector<int>> stage_layers(const Plan& plan, const Model& model);

}  // namespace millrace
