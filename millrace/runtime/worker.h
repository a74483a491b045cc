// Worker: executes a lowered schedule on one rank. Holds the rank's stages with their weights,
// the stashes of microbatches in flight, gradients and optimizer state; decides nothing about order
// or versions.
//
// One object a rank, used from one thread at a time; segments (an epoch, an evaluation) run one
// after another.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/core/lr_schedule.h"
#include "millrace/core/schedule.h"
#include "millrace/model/model.h"
#include "millrace/runtime/board.h"
#include "millrace/runtime/dealer.h"
#include "millrace/runtime/emulated_device.h"
#include "millrace/runtime/feed.h"
#include "millrace/runtime/gate.h"
#include "millrace/runtime/held_stage.h"
#include "millrace/runtime/recorder.h"
#include "millrace/schedule/interpret.h"

namespace millrace {

// Sees every update, for verification. Called on the rank's thread; must be thread-safe over ranks.
class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  // `replica` is the rank's place among the stage's: where layers are split, replica by replica the
  // parts. `step` is the last one that the update applies; `gradient_sum` what it is about to
  // divide by `samples`; `before` the weights it is added to.
  virtual void before_update(int stage, int replica, int64_t step, const at::Tensor& gradient_sum,
                             double samples, const at::Tensor& before) = 0;
  virtual void after_update(int stage, int replica, int64_t step, const at::Tensor& after) = 0;
};

struct WorkerSetup {
  const Model* model = nullptr;     // outlives the worker
  std::vector<StageSetup> stages;   // that the rank holds, ascending
  std::vector<int> stage_of_layer;  // of every layer of the model
  std::vector<int> used_ranks;      // of all stages, ascending; needed for train.clip_norm
  std::string rule = "bsp";
  Value rule_options = Value::map();
  std::vector<int> node_of_rank;  // of every rank of the run; empty: all on one
  TrainConfig train;              // its optimizer and clip_norm
  Recompute recompute = Recompute::kNothing;
  uint64_t seed = 1;
  at::ScalarType dtype = at::kFloat;
  double trace_origin_s = 0;
  std::size_t max_trace_events = 200000;
  // Deliberate faults of `verify --break`: an extra division of every gradient by the update's
  // samples.
  bool divide_twice = false;
  std::optional<EmulatedDevice> device;  // what the rank's actions take the time of
  bool measures_stash = false;           // walks all stashes at every action
  // Called before every action of training, if set; for tests.
  std::function<void(const Action& action)> before_action;
};

// What a segment of training needs besides the schedule. Pointers outlive the segment; observer may
// be null.
struct TrainSegment {
  const LoweredSchedule* lowered = nullptr;
  const Feed* feed = nullptr;
  int64_t num_steps = 0;
  Dealer* dealer = nullptr;  // null: every replica takes its own part of each step
  const LrSchedule* lr = nullptr;
  int64_t first_step = 0;  // the run's number of the segment's step 0: keys random draws, and `lr`
  StepGate* gate = nullptr;
  StepReporter* board = nullptr;
  UpdateObserver* observer = nullptr;
};

class Worker {
 public:
  // Collective over the replicas of each stage that has several, over a replica's parts, and over
  // all used ranks when the gradient is clipped (makes their groups).
  Worker(const WorkerSetup& setup, Communicator& communicator);
  ~Worker();

  // Runs the rank's actions; returns the number of steps of its own that it did. Errors carry rank,
  // stage, microbatch, action.
  int64_t train(const TrainSegment& segment);

  // Forward-only on the newest weights over microbatches 0..num_microbatches-1 of the feed; sums of
  // the last stage's rank, zeros elsewhere.
  LossSums evaluate(const LoweredSchedule& lowered, const Feed& feed);

  // One of the rank's stages. Throws kInternal for another one.
  HeldStage& held(int stage);
  const HeldStage& held(int stage) const;
  const Recorder& recorder() const { return recorder_; }
  // Most bytes that all stashes held at once; 0 unless the setup measures_stash.
  int64_t peak_stash_bytes() const { return peak_stash_bytes_; }
  // Most bytes, each part's own, of weights, gradients and optimizer state while training.
  const MemoryUse& peak_memory() const { return peak_memory_; }

 private:
  class Training;
  class Evaluation;
  void note_memory();
  // Waits until the action would end on the emulated device, if there is one.
  void finish(const Action& action, int64_t step, int64_t samples, double start_s) const;

  WorkerSetup setup_;
  Communicator* communicator_;
  std::vector<std::unique_ptr<HeldStage>> stages_;
  std::unique_ptr<Group> norm_group_;  // null without clipping or for a single rank
  Recorder recorder_;
  int64_t peak_stash_bytes_ = 0;
  MemoryUse peak_memory_;
};

}  // namespace millrace
