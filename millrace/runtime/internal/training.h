// The handler of training: what a rank does for each action. See Worker.
#pragma once

#include <optional>
#include <vector>

#include "millrace/runtime/internal/slots.h"
#include "millrace/runtime/loader.h"
#include "millrace/runtime/worker.h"

namespace millrace {

class Worker::Training final : public ActionHandler {
 public:
  Training(Worker& worker, const TrainSegment& segment);

  // Around the segment's actions: what exchange rules do there.
  void begin();
  void finish();

  bool enter_step(int64_t step) override;
  void forward(const Action& action) override;
  void backward(const Action& action) override;
  void input_gradient(const Action& action) override;
  void weight_gradient(const Action& action) override;
  void send(const Action& action) override;
  void receive(const Action& action) override;
  void reduce(const Action& action) override;
  void norm(const Action& action) override;
  void step(const Action& action) override;
  void gather(const Action& action) override;
  void free(const Action& action) override;

 private:
  // One of the rank's stages in this segment.
  struct Lane {
    Lane(HeldStage& own, Worker& worker, const ActionList& actions);

    // Whether this rank runs the stage on a microbatch, counted within a repeated list.
    bool runs(int64_t microbatch) const { return runs_[static_cast<std::size_t>(microbatch)]; }
    // The REDUCE before which its B (or W) is the stage's last; null for others.
    const Action* reduce_after(int64_t microbatch) const {
      return reduce_after_[static_cast<std::size_t>(microbatch)];
    }

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
    std::vector<const Action*> reduce_after_;
    // Where a dealer deals: the listed microbatches of each replica of the stage, and the place of
    // each of this one's.
    std::vector<std::vector<int64_t>> blocks;
    std::vector<int64_t> place_in_block;
    Update update;    // at hand, or the last one
    LossSums losses;  // of the update, where the stage sees them
    Transfer beside;  // what its exchange moved during backwards, told with the next REDUCE
  };

  Lane& lane(const Action& action) { return *lane_of_[static_cast<std::size_t>(action.stage)]; }
  // A microbatch's number in the lowered list, which a flush repeats.
  int64_t listed(int64_t microbatch) const {
    return segment_.lowered->flush ? microbatch % segment_.lowered->microbatches_per_step
                                   : microbatch;
  }
  // The number that the feed knows a microbatch by: its own, or that of the part that was dealt.
  int64_t fed(const Lane& own, int64_t microbatch) const;
  int64_t fed_step(int64_t step) const { return segment_.dealer == nullptr ? step : part_.step; }
  bool runs(const Lane& other, int64_t microbatch) const { return other.runs(listed(microbatch)); }
  void announce(const Action& action) const {
    if (worker_.setup_.before_action) {
      worker_.setup_.before_action(action);
    }
  }

  int64_t first_step(const Action& action) const;
  int64_t last_step(const Action& action) const;
  double update_samples(const Action& action) const;
  void start_loader();
  Batch load(const Stage& stage, int64_t number) const;
  void finish_compute(const Action& action, int64_t samples, double start_s);
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
  Update update_of(const Lane& own, int64_t first_step, int64_t last_step) const;
  LayerDone announcer(Lane& own, int64_t microbatch);
  LayerDone announcer(Lane& own);
  bool announces(const Lane& own) const;
  void prepare_gradient(Lane& own);
  void update_shard(Lane& own, const Action& action);
  void update(Lane& own, const Action& action, Transfer& transfer);
  void record_beside(HeldStage& held, Action action);
  OptimizerStep optimizer_step(HeldStage& held, const Update& update) const;

  Worker& worker_;
  const TrainSegment& segment_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> lane_of_;      // by stage; null where the rank does not hold it
  Dealer::Part part_;               // of the step at hand, where a dealer deals
  double clip_ = 1;                 // of the update at hand
  std::unique_ptr<Loader> loader_;  // null: the rank loads its parts itself, or none
};

}  // namespace millrace
