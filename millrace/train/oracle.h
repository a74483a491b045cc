// Oracles: what training must compute, in one thread, from closed forms. They share the layers'
// arithmetic with the runtime and nothing else: no schedule, no lowering, no annotation of
// versions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/run_config.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/model/stage.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {

// What an update of one stage did: per parameter, in model order.
struct StageFacts {
  std::vector<at::Tensor> gradients;  // of the mean loss over the samples of the update, unclipped
  std::vector<at::Tensor> weights;    // after it
};

// The learning rate of an oracle's step, from 0.
using LrOfStep = std::function<double(int64_t step)>;

struct StepFacts {
  double loss_sum = 0;
  // Of each stage that updated after this step, which without a flush only those do whose round it
  // ends.
  std::map<int, StageFacts> stages;
};

// Whole batches through the whole model: any schedule with a flush, any replicas and microbatches,
// must agree.
class WholeBatchOracle {
 public:
  // `parts`: into how many parts (microbatches times replicas) the run cuts a minibatch. Only a
  // model that mixes samples depends on it: its minibatches are cut alike. `lr` gives the rate of
  // step k of the oracle, from 0; empty: config.lr always.
  WholeBatchOracle(const Model& model, const TrainConfig& config, int parts = 1, LrOfStep lr = {});

  // One step on these samples, started from `weights` (in model order); the optimizer's state is
  // the oracle's own. `step` is the run's number of it, which keys random draws. The answer has one
  // stage, 0, which holds all.
  StepFacts step(const std::vector<at::Tensor>& weights, const Dataset& dataset,
                 const int64_t* indices, int64_t count, int64_t step = 0);

 private:
  Stage stage_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensors buffers_;
  uint64_t seed_;
  int parts_;
  std::optional<double> clip_norm_;
  LrOfStep lr_;
  int64_t step_ = 0;
};

// Delayed SGD, in closed form. Stage s has r_s of the R_s ranks from it on; minibatch b is number
// k = b / r_s of the replica that gets it, which runs up to w = ceil(R_s / r_s) of its own ahead of
// a backward. So minibatch b runs forward and backward of stage s after max(0, k - (w - 1))
// backwards of its replica; every round of the stage (r_s minibatches, or lcm of all r with update
// = step) the sum of the replicas' gradients, in the order of replicas, makes the next version.
// With vertical sync all stages use the version of stage 0. On a straight pipeline: version max(0,
// b-(S-1-s)). PipeDream, SOSP'19, sections 3.2 and 3.3. Keeps every version: memory grows with
// steps.
class DelayedSgdOracle {
 public:
  // `lr` gives the rate of the update whose last minibatch is b; empty: config.lr always.
  DelayedSgdOracle(const Model& model, const Plan& plan, bool vertical_sync,
                   const TrainConfig& config, LrOfStep lr = {});

  // Minibatch b, called in order from 0; `last` closes rounds that are not complete. `step` is the
  // run's number of it, which keys random draws.
  StepFacts step(const Dataset& dataset, const int64_t* indices, int64_t count, bool last,
                 int64_t step = 0);

 private:
  struct Part {
    Part(Stage own_stage, std::unique_ptr<Optimizer> own_optimizer)
        : stage(std::move(own_stage)), optimizer(std::move(own_optimizer)) {}
    Stage stage;
    std::unique_ptr<Optimizer> optimizer;
    int64_t replicas = 1;
    int64_t warm_up = 0;               // own minibatches of a replica ahead of its first backward
    int64_t round = 1;                 // minibatches an update
    std::vector<at::Tensor> versions;  // flat, from version 0
    std::vector<at::Tensor> sums;      // of each replica, in this round
    std::vector<std::size_t> order;    // replicas by rank: how sums are added up
    int64_t samples = 0;               // of this round
    Tensors buffers;
  };
  int64_t version_of(const Part& part) const;
  void update(Part& part, StageFacts& facts);

  std::vector<Part> parts_;
  bool vertical_sync_;
  uint64_t seed_;
  std::optional<double> clip_norm_;
  LrOfStep lr_;
  int64_t minibatch_ = 0;
};

}  // namespace millrace
