// The handler of training: what a rank does for each action. See Worker.
#pragma once

#include <optional>
#include <vector>

#include "millrace/runtime/internal/slots.h"
#include "millrace/runtime/worker.h"

namespace millrace {

class Worker::Training final : public ActionHandler {
 public:
  Training(Worker& worker, const TrainSegment& segment);

  bool enter_step(int64_t step) override { return segment_.gate->enter(step); }
  void forward(const Action& action) override;
  void backward(const Action& action) override;
  void input_gradient(const Action& action) override;
  void weight_gradient(const Action& action) override;
  void send(const Action& action) override;
  void receive(const Action& action) override;
  void reduce(const Action& action) override;
  void norm(const Action& action) override;
  void step(const Action& action) override;

 private:
  // One of the rank's stages in this segment.
  struct Lane {
    Lane(HeldStage& own, Worker& worker, const ActionList& actions);

    // Whether this rank runs the stage on a microbatch, counted within a repeated list.
    bool runs(int64_t microbatch) const { return runs_[static_cast<std::size_t>(microbatch)]; }

    HeldStage& held;
    Neighbours neighbours;
    internal::SlotRing slots;
    // Other stages of the rank that take this one's outputs, or make its inputs.
    std::vector<Lane*> users;
    std::vector<Lane*> makers;
    Tensors scratch_buffers;  // what recomputed forwards update
    at::Tensor mixed;         // policy blend
    WeightViews mixed_views;
    std::vector<bool> runs_;
  };

  Lane& lane(const Action& action) { return *lane_of_[static_cast<std::size_t>(action.stage)]; }
  bool runs(const Lane& other, int64_t microbatch) const {
    return other.runs(segment_.lowered->flush ? microbatch % segment_.lowered->microbatches_per_step
                                              : microbatch);
  }
  void announce(const Action& action) const {
    if (worker_.setup_.before_action) {
      worker_.setup_.before_action(action);
    }
  }

  int64_t first_step(const Action& action) const;
  int64_t last_step(const Action& action) const;
  double update_samples(const Action& action) const;
  int64_t forward_one(Lane& own, const Action& action, int64_t microbatch);
  Tensors run_forward(Lane& own, internal::Slot& slot, const WeightViews& weights,
                      at::TensorList buffers, at::TensorList accumulators, LossSums& sums) const;
  void hand_on(Lane& own, internal::Slot& slot) const;
  void hand_back(Lane& own, internal::Slot& slot) const;
  void prepare_backward(Lane& own, internal::Slot& slot, const WeightViews& weights) const;
  const WeightViews& backward_weights(Lane& own, const Action& action) const;
  template <typename Compute>
  void run_backward(const Action& action, const Compute& compute);
  void measure_stash();
  void update(HeldStage& held, const Action& action);

  Worker& worker_;
  const TrainSegment& segment_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> lane_of_;  // by stage; null where the rank does not hold it
  double clip_ = 1;             // of the update at hand
};

}  // namespace millrace
