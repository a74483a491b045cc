// Plan: which layers make each stage, which ranks run it, by which schedule and rule. Made by a
// planner or by hand; read by schedule, sim and runtime. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/profile.h"

namespace millrace {

struct PlanStage {
  std::vector<std::string> layers;  // names, in model order
  std::vector<int> ranks;           // that hold this stage; world ranks
  bool operator==(const PlanStage&) const = default;
};

// Predicted peak bytes of one rank, each part its own number.
struct MemoryUse {
  int64_t weight_bytes = 0;  // live versions x parameters
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t stash_bytes = 0;   // peak over in-flight microbatches
  int64_t border_bytes = 0;  // activations and gradients waiting at stage borders
  int64_t workspace_bytes = 0;
  int64_t total() const {
    return weight_bytes + gradient_bytes + optimizer_bytes + stash_bytes + border_bytes +
           workspace_bytes;
  }
  bool operator==(const MemoryUse&) const = default;
};

// When the replicas of stages update without a flush.
enum class UpdateRule {
  kRound,  // a stage with r replicas after every r minibatches
  kStep,   // all stages together after every lcm(r) minibatches
};
const char* to_string(UpdateRule update);  // "round", "step"
// Throws Error(kInvalidArgument) that names both.
UpdateRule parse_update_rule(const std::string& text);

// What a forward leaves out of its stash, to be computed once more by the backward.
enum class Recompute {
  kNothing,
  kStage,  // all but the stage's inputs
  kLayer,  // all but each layer's inputs
};
const char* to_string(Recompute recompute);  // "none", "stage", "layer"
// Throws Error(kInvalidArgument) that names all three.
Recompute parse_recompute(const std::string& text);

// What a stage's replicas divide among themselves, each keeping a shard of it. The name is the
// stage of "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC'20.
enum class Shard {
  kNothing,
  kZero1,  // optimizer state
  kZero2,  // and gradients
  kZero3,  // and weights
};
const char* to_string(Shard shard);  // "none", "zero-1", "zero-2", "zero-3"
// Throws Error(kInvalidArgument) that names all four.
Shard parse_shard(const std::string& text);

// Stage `to` uses tensors that the earlier stage `from` makes.
struct StageLink {
  int from = 0;
  int to = 0;
  auto operator<=>(const StageLink&) const = default;
};

struct Plan {
  std::string planner = "by-hand";
  std::string schedule = "1f1b";
  std::string rule = "bsp";
  Value rule_options = Value::map();       // its keys that are not at their defaults
  int microbatches = 1;                    // of a replica of the most replicated stage
  UpdateRule update = UpdateRule::kRound;  // without a flush
  Recompute recompute = Recompute::kNothing;
  Shard shard = Shard::kNothing;
  // Ranks that hold a part each of every layer that can be split, for each replica of a stage. A
  // stage's ranks then come replica by replica, the parts of one beside one another.
  int split_parts = 1;
  int workers = 1;  // ranks there are; a plan may leave some idle
  std::vector<PlanStage> stages;
  // What the planner minimised, by its own formula, and PipeDream's formula for this plan and two
  // others; seconds per minibatch, 0 when unknown.
  double objective_s = 0;
  double minibatch_s = 0;
  double data_parallel_minibatch_s = 0;
  double one_worker_minibatch_s = 0;
  std::vector<MemoryUse> memory;   // one a rank, empty when not predicted
  std::vector<std::string> notes;  // the planner's, on how far its answer holds

  int num_stages() const { return static_cast<int>(stages.size()); }
  int num_used_ranks() const;
  // Of the stage that has most; the parts of a split layer are one replica.
  int max_replicas() const;
  // Stages that a rank holds, ascending; none for an idle one.
  std::vector<int> stages_of_rank(int rank) const;
  bool operator==(const Plan&) const = default;
};

// Reading validates the form: non-empty stages, each rank 0..workers-1 in some stage or else in
// `idle_ranks`, no layer twice. Whether it fits a model is checked by check_plan, whether it fits a
// schedule by schedule_config.
Plan plan_from(const Document& document);
Value to_value(const Plan& plan);

// Every layer of the model exactly once. Without `edges`, or when they are the chain of the layers
// in order: the stages' layers, one after another, are the model's in order. Otherwise, on a DAG
// whose layers stand in an order that respects its edges: each stage's list is in model order, and
// every edge leads to the same or a later stage. All findings in one Error (kInvalidArgument): gap,
// overlap, disorder, an edge that leads back, unknown layer, more stages than layers.
void check_plan(const Plan& plan, const std::vector<std::string>& model_layers,
                const std::vector<ProfileEdge>& edges, const std::string& file = "");

// Which stages hand tensors to which, ascending, for a model with these edges (explicit, as in
// Profile::edges). Throws Error(kInvalidArgument) for an edge whose layer no stage holds.
std::vector<StageLink> stage_links(const Plan& plan, const std::vector<ProfileEdge>& edges);
// 0 -> 1 -> 2 ...
std::vector<StageLink> chain_links(int num_stages);

// "conv1..pool2 -> rank 0 | flatten..fc2 -> rank 1"
std::string describe(const Plan& plan);

}  // namespace millrace
