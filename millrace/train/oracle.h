// Oracles: what training must compute, in one thread, from closed forms. They share the layers'
// arithmetic with the runtime and nothing else: no schedule, no lowering, no annotation of
// versions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/run_config.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/model/stage.h"
#include "millrace/runtime/optimizer.h"

namespace millrace {

// What one update did: per parameter, in model order.
struct StepFacts {
  double loss_sum = 0;
  std::vector<at::Tensor> gradients;  // of the mean loss
  std::vector<at::Tensor> weights;    // after the update
};

// Names of the parameters, in the order of StepFacts.
struct ParameterName {
  int stage = 0;
  std::string layer;
  std::string parameter;
};

// Whole batches through the whole model: any schedule with a flush, any replicas and microbatches,
// must agree.
class WholeBatchOracle {
 public:
  WholeBatchOracle(const Model& model, const TrainConfig& config);

  // One step on these samples, started from `weights` (in model order); momentum is the oracle's
  // own.
  StepFacts step(const std::vector<at::Tensor>& weights, const Dataset& dataset,
                 const int64_t* indices, int64_t count);

 private:
  Stage stage_;
  Sgd optimizer_;
};

// Delayed SGD on a straight pipeline of S stages: minibatch b runs forward and backward of stage s
// on version max(0, b-(S-1-s)), and its gradient makes version b+1 from version b. PipeDream,
// SOSP'19, section 3.3. Keeps every version: memory grows with steps.
class DelayedSgdOracle {
 public:
  DelayedSgdOracle(const Model& model, const Plan& plan, const TrainConfig& config);

  // Minibatch b, called in order from 0.
  StepFacts step(const Dataset& dataset, const int64_t* indices, int64_t count);

 private:
  struct Part {
    Stage stage;
    Sgd optimizer;
    std::vector<at::Tensor> versions;  // flat, from version 0
  };
  std::vector<Part> parts_;
  int64_t minibatch_ = 0;
};

}  // namespace millrace
