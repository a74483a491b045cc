#include "millrace/runtime/optimizer.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "millrace/base/error.h"
#include "millrace/core/optimizer_keys.h"

namespace millrace {

namespace builtin_optimizers {
#define OPTIMIZER(name, symbol, text, keys, state) \
  std::unique_ptr<Optimizer> symbol(const TrainConfig& config, FlatLayout layout);
#include "millrace/runtime/builtin.def"
#undef OPTIMIZER
}  // namespace builtin_optimizers

FlatLayout flat_layout(const Stage& stage, at::ScalarType dtype) {
  FlatLayout layout{.elements = stage.flat_elements(), .offsets = {}, .dtype = dtype};
  for (const ParameterSlot& slot : stage.slots()) {
    layout.offsets.push_back(slot.offset);
  }
  return layout;
}

Optimizer::Optimizer(FlatLayout layout) : layout_(std::move(layout)) {
  MILLRACE_CHECK(layout_.dtype == at::kFloat || layout_.dtype == at::kDouble,
                 "optimizers take float32 or float64");
}

at::Tensor Optimizer::add_state(const char* name) {
  state_.push_back({name, at::zeros({layout_.elements}, layout_.dtype)});
  return state_.back().tensor;
}

void Optimizer::count_updates() {
  updates_ = at::zeros({static_cast<int64_t>(layout_.offsets.size())}, at::kDouble);
}

int64_t Optimizer::range_end(std::size_t index) const {
  return index + 1 < layout_.offsets.size() ? layout_.offsets[index + 1] : layout_.elements;
}

const std::vector<OptimizerEntry>& optimizers() {
  static const std::vector<OptimizerEntry> entries = {
#define OPTIMIZER(name, symbol, text, keys, state) \
  {name, text, keys, state, &builtin_optimizers::symbol},
#include "millrace/runtime/builtin.def"
#undef OPTIMIZER
  };
  return entries;
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, FlatLayout layout) {
  std::vector<OptimizerText> texts;
  for (const OptimizerEntry& entry : optimizers()) {
    texts.push_back({entry.name, entry.keys});
  }
  TrainConfig settled = config;
  settle_optimizer(settled, texts);
  for (const OptimizerEntry& entry : optimizers()) {
    if (entry.name == settled.optimizer) {
      return entry.make(settled, std::move(layout));
    }
  }
  throw Error(ErrorCode::kInternal, "a settled optimizer is one of the table");
}

OptimizerState optimizer_state(const TrainConfig& config) {
  const std::unique_ptr<Optimizer> probe = make_optimizer(config, {});
  OptimizerState state;
  for (const OptimizerBuffer& buffer : probe->state()) {
    state.buffers.push_back(buffer.name);
  }
  state.counts_updates = probe->updates().defined();
  return state;
}

}  // namespace millrace
