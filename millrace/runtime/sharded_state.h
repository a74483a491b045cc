// ShardedState: what a replica of a sharded stage keeps of its weights, gradient and optimizer
// state, and how that becomes whole and a shard again where GATHER, FREE and REDUCE stand
// (schedule/shard.h). Memory that is not needed is really given back: of zero-3 a replica holds its
// shard of the weights between runs, of zero-2 and zero-3 its shard of the gradient.
//
// Part of a HeldStage; used from the rank's thread only. Source: "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models" (SC'20), section 5.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/exchange/shard_group.h"
#include "millrace/model/stage.h"
#include "millrace/runtime/optimizer.h"
#include "millrace/runtime/versions.h"

namespace millrace {

// The parameters that a range of the flat buffer meets, and how they lie in it.
struct ShardLayout {
  FlatLayout flat;
  std::vector<std::size_t> slots;  // indices into Stage::slots()
};
ShardLayout shard_layout(const Stage& stage, ShardRange range, at::ScalarType dtype);

class ShardedState {
 public:
  // What it turns into shards: the stage's initial weights in `versions`, and the buffer of
  // gradient sums. All of these outlive it.
  struct Parts {
    const Stage& stage;
    WeightVersions& versions;
    at::Tensor& gradient;
    WeightViews& gradient_views;
    Optimizer& optimizer;  // of shard_layout()
  };
  ShardedState(Shard shard, ShardGroup group, const Parts& parts);

  // Weights are whole in `versions` from now on. Collective.
  Transfer gather();
  // Of zero-3: only the shard stays.
  void free();
  bool is_freed() const { return freed_; }  // weights are not whole
  bool frees() const { return shard_ == Shard::kZero3; }

  // Before a backward: there is a whole buffer for its sums.
  void prepare_gradient();
  // The sums over all replicas' buffers join the shard's; collective.
  Transfer reduce();

  // The replica's shard of weights and of gradient sums; they share memory.
  at::Tensor weights();
  at::Tensor gradient();
  ShardGroup& group() { return group_; }

  // Weights and optimizer state whole, for a checkpoint, at member `root`; the others get undefined
  // tensors and no buffers. Collective.
  struct Whole {
    at::Tensor weights;
    std::vector<OptimizerBuffer> state;
    at::Tensor updates;  // of all parameters; undefined where the optimizer counts none
  };
  Whole collect(int root);
  // Takes what is this replica's of parameter `slot` (index into Stage::slots()) of the stage,
  // whose shape `value` has: of the weights; of a buffer of the optimizer's state; the number of
  // updates.
  void load_weights(std::size_t slot, const at::Tensor& value);
  void load_state(std::size_t slot, const at::Tensor& value, const at::Tensor& state);
  void load_updates(std::size_t slot, double updates);

  // Bytes of weights and of gradients that are here now.
  int64_t weight_bytes() const;
  int64_t gradient_bytes() const;

 private:
  Shard shard_;
  ShardGroup group_;
  Parts parts_;
  std::vector<std::size_t> slots_;
  at::Tensor weights_;   // of zero-3: the shard
  at::Tensor gradient_;  // of zero-2 and zero-3: the shard
  bool freed_ = false;
};

}  // namespace millrace
