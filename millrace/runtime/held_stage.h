// HeldStage: what a rank keeps of one of its stages: weights in all live versions, gradient sums,
// optimizer state, buffers, and the exchange with the stage's other ranks.
//
// Used from the rank's thread only.
#pragma once

#include <memory>
#include <vector>

#include "millrace/comm/communicator.h"
#include "millrace/exchange/exchange.h"
#include "millrace/model/stage.h"
#include "millrace/runtime/neighbours.h"
#include "millrace/runtime/optimizer.h"
#include "millrace/runtime/sharded_state.h"
#include "millrace/runtime/stage_peers.h"
#include "millrace/runtime/versions.h"

namespace millrace {

struct WorkerSetup;

// Which layers of the model make a stage, and which ranks hold it.
struct StageSetup {
  int stage = 0;
  std::vector<int> layers;        // by index
  int replica = 0;                // of this rank, among the stage's
  std::vector<int> replicas;      // world ranks, ascending; of split layers those of the same part
  Shard shard = Shard::kNothing;  // what they divide, where there are several
  int part = 0;                   // of split layers
  std::vector<int> parts{};       // world ranks of the replica's parts, in order; empty: not split
};

struct HeldStage {
  // Collective over the stage's replicas when there are several, and over a replica's parts.
  HeldStage(const WorkerSetup& worker, const StageSetup& setup, Communicator& communicator);

  // The squared norm of the gradient sums, of what only this part has: part 0 counts what all have.
  double squared_gradient_norm() const;
  // Where split layers meet; null where none are.
  LayerPeers* layer_peers() const { return peers.get(); }

  int index;
  int replica;
  int part;
  int place;  // of the rank, among all of the stage, replicas' parts one beside another
  std::unique_ptr<StagePeers> peers;
  Stage stage;
  StageBorders borders;
  WeightVersions versions;
  std::unique_ptr<Optimizer> optimizer;
  at::Tensor gradient;  // flat sums; of a sharded stage undefined where nothing needs them whole
  WeightViews gradient_views;
  Tensors buffers;             // in buffer_slots() order: no versions, updated in order of forwards
  Tensors accumulators;        // of train.batch_norm = "deferred"; else empty
  int64_t buffer_samples = 0;  // that went through training forwards since average_buffers()
  std::unique_ptr<Exchange> exchange;     // null for a single replica and for a sharded stage
  std::unique_ptr<ShardedState> sharded;  // null: all of it is here
  std::unique_ptr<Group> buffer_group;    // of the replicas, where there are buffers; else null

  // The weights that the replicas agree on; undefined where these are their own newest. Collective
  // over the replicas.
  at::Tensor settled() {
    return exchange == nullptr ? at::Tensor() : exchange->settle(versions.newest());
  }

  // Gives all replicas the mean of their buffers, each weighing by what it saw since the last time.
  // Collective over the replicas.
  void average_buffers();

  // Bytes that are here now of weights (all versions), gradient sums and optimizer state.
  MemoryUse memory() const;
};

}  // namespace millrace
