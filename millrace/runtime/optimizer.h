// Optimizer: the update of one stage's weights, fused over the flat buffer. The builtins are listed
// in builtin.def, a file each below builtin/.
//
// One object a rank and stage, used from that rank's thread. Its state is keyed like the weights,
// so a checkpoint stores it per parameter and any other layout can load it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/core/run_config.h"
#include "millrace/model/stage.h"

namespace millrace {

// How the parameters lie in the flat buffers.
struct FlatLayout {
  int64_t elements = 0;
  std::vector<int64_t> offsets;       // first element of each parameter, increasing
  at::ScalarType dtype = at::kFloat;  // float32 or float64
};
FlatLayout flat_layout(const Stage& stage, at::ScalarType dtype);

// What one update is told.
struct UpdateFactors {
  double samples = 1;  // of the whole update, over all replicas and microbatches: the only division
                       // that there is
  double lr = 0;
  double clip = 1;          // on the mean gradient: below 1 where its norm was too large
  bool delta_only = false;  // `target` gets what would be added to the weights; not `current` then
};

// A flat buffer of state by its lasting name: "velocity", "m".
struct OptimizerBuffer {
  std::string name;
  at::Tensor tensor;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // In one pass over the buffers: g = gradient_sum / samples x clip, the state, a delta,
  // target = current + delta (or delta alone), gradient_sum = 0. The delta is rounded before it is
  // added: two programs that agree on it agree on the weights bit for bit. `target` may be
  // `current` itself.
  // Padding is zero and stays so.
  virtual void update(const at::Tensor& current, at::Tensor& target, at::Tensor& gradient_sum,
                      const UpdateFactors& factors) = 0;

  // Flat like the weights; they share memory with the optimizer.
  const std::vector<OptimizerBuffer>& state() const { return state_; }

  // How many updates each parameter has had, float64, [number of parameters], for optimizers whose
  // update depends on it; else undefined. Shares memory.
  const at::Tensor& updates() const { return updates_; }

 protected:
  explicit Optimizer(FlatLayout layout);
  at::Tensor add_state(const char* name);
  void count_updates();

  // The end of parameter `index`'s range, which starts at its offset: the next one's offset.
  int64_t range_end(std::size_t index) const;
  const FlatLayout& layout() const { return layout_; }

 private:
  FlatLayout layout_;
  std::vector<OptimizerBuffer> state_;
  at::Tensor updates_;
};

struct OptimizerEntry {
  std::string name;
  std::string text;
  std::string keys;   // "momentum=0 weight_decay=0"
  std::string state;  // "velocity, with momentum"
  // `config` is settled: every key of the optimizer has a value.
  std::unique_ptr<Optimizer> (*make)(const TrainConfig& config, FlatLayout layout);
};
const std::vector<OptimizerEntry>& optimizers();

// The optimizer that `config` names, with its state at zero. Throws what settle_optimizer throws
// (millrace/core/optimizer_keys.h).
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, FlatLayout layout);

// Names of what the optimizer of `config` keeps for every parameter, in the order of checkpoints:
// buffers of the parameter's shape first, then "updates", a single float64, where it counts them.
struct OptimizerState {
  std::vector<std::string> buffers;
  bool counts_updates = false;
};
OptimizerState optimizer_state(const TrainConfig& config);

}  // namespace millrace
