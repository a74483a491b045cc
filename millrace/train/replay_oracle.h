// ReplayOracle: what training without a flush must compute, in one thread, from the bare order of
// forwards and backwards alone. It shares the layers' arithmetic with the runtime, and neither
// lowering nor the annotation of versions: it counts for itself which weights each action sees.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/schedule.h"
#include "millrace/train/oracle.h"

namespace millrace {

// Minibatch by minibatch: every part goes forward and back through all stages, on each with the
// weights that its place in that stage's order gives it; a stage updates when all its ranks have
// been through a round. Keeps every version: memory grows with steps.
class ReplayOracle {
 public:
  // `schedule` as it was made for the plan, of `num_steps` steps; `policy` by name.
  ReplayOracle(const Model& model, const Plan& plan, const Schedule& schedule, int64_t num_steps,
               const std::string& policy, double blend_lambda, const TrainConfig& config,
               LrOfStep lr = {});

  // Step b, called in order from 0. `step` is the run's number of it, which keys random draws.
  StepFacts step(const Dataset& dataset, const int64_t* indices, int64_t count, int64_t step = 0);

 private:
  // Weights that a microbatch sees on a stage: those after so many of its updates.
  struct Seen {
    int64_t forward = 0;
    int64_t backward = 0;  // of policy blend: the newest, mixed with the forward's
    std::size_t replica = 0;
  };
  struct Part {
    Part(Stage own_stage, std::unique_ptr<Optimizer> own_optimizer)
        : stage(std::move(own_stage)), optimizer(std::move(own_optimizer)) {}
    Stage stage;
    std::unique_ptr<Optimizer> optimizer;
    int64_t round = 1;                 // microbatches an update
    std::vector<at::Tensor> versions;  // flat, from version 0
    std::vector<at::Tensor> sums;      // of each replica, in this round
    std::vector<std::size_t> order;    // replicas by rank: how sums are added up
    int64_t samples = 0;               // of this round
    Tensors buffers;
    std::map<int64_t, Seen> seen;  // by microbatch
  };
  void watch(const Schedule& schedule, const std::string& policy);
  at::Tensor backward_weights(const Part& part, const Seen& seen) const;
  void update(Part& part, StageFacts& facts);

  std::vector<Part> parts_;
  int64_t num_steps_;
  int64_t microbatches_;  // of a step
  bool blends_;
  double blend_lambda_;
  uint64_t seed_;
  LrOfStep lr_;
  int64_t minibatch_ = 0;
};

}  // namespace millrace
