#include "millrace/runtime/sharded_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

ShardLayout shard_layout(const Stage& stage, ShardRange range, at::ScalarType dtype) {
  ShardLayout layout;
  layout.flat.elements = range.size();
  layout.flat.dtype = dtype;
  const std::vector<ParameterSlot>& slots = stage.slots();
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const int64_t end = s + 1 < slots.size() ? slots[s + 1].offset : stage.flat_elements();
    if (slots[s].offset < range.end && end > range.begin) {
      layout.slots.push_back(s);
      layout.flat.offsets.push_back(std::max<int64_t>(slots[s].offset - range.begin, 0));
    }
  }
  return layout;
}

ShardedState::ShardedState(Shard shard, ShardGroup group, const Parts& parts)
    : shard_(shard), group_(std::move(group)), parts_(parts) {
  const ShardRange own = group_.own();
  const at::Tensor& newest = parts_.versions.newest();
  slots_ = shard_layout(parts_.stage, own, newest.scalar_type()).slots;
  if (shard_ != Shard::kZero1) {
    gradient_ = at::zeros({own.size()}, newest.options());
    parts_.gradient.reset();
    parts_.gradient_views.clear();
  }
  if (frees()) {
    weights_ = newest.narrow(0, own.begin, own.size()).clone();
    free();
  }
}

at::Tensor ShardedState::weights() {
  const ShardRange own = group_.own();
  return frees() ? weights_ : parts_.versions.newest().narrow(0, own.begin, own.size());
}

at::Tensor ShardedState::gradient() {
  const ShardRange own = group_.own();
  return gradient_.defined() ? gradient_ : parts_.gradient.narrow(0, own.begin, own.size());
}

Transfer ShardedState::gather() {
  if (frees()) {
    at::Tensor whole = at::empty({parts_.stage.flat_elements()}, weights_.options());
    const Transfer transfer = group_.all_gather(weights_, whole);
    parts_.versions.restore(std::move(whole));
    freed_ = false;
    return transfer;
  }
  const Transfer transfer = group_.all_gather(weights(), parts_.versions.newest());
  if (shard_ == Shard::kZero1) {
    // Everybody is through with REDUCE and has read the sums of its shard. The own ones were set
    // to zero by the update.
    const ShardRange own = group_.own();
    parts_.gradient.narrow(0, 0, own.begin).zero_();
    parts_.gradient.narrow(0, own.end, parts_.gradient.numel() - own.end).zero_();
  }
  return transfer;
}

void ShardedState::free() {
  MILLRACE_CHECK(frees() && !freed_, "FREE of weights that are not there, or stay");
  parts_.versions.release();
  freed_ = true;
}

void ShardedState::prepare_gradient() {
  if (!parts_.gradient.defined()) {
    parts_.gradient = parts_.stage.new_flat();
    parts_.gradient_views = parts_.stage.views(parts_.gradient);
  }
}

Transfer ShardedState::reduce() {
  prepare_gradient();  // a replica without a sample brings zeros
  at::Tensor sum = gradient();
  const Transfer transfer = group_.reduce_scatter(parts_.gradient, sum, gradient_.defined());
  if (gradient_.defined()) {
    // Others may read it still: who reads keeps it.
    parts_.gradient.reset();
    parts_.gradient_views.clear();
  }
  return transfer;
}

ShardedState::Whole ShardedState::collect(int root) {
  Whole whole;
  whole.weights = group_.join_at(root, weights());
  const bool is_root = group_.member() == root;
  for (const OptimizerBuffer& buffer : parts_.optimizer.state()) {
    at::Tensor joined = group_.join_at(root, buffer.tensor);
    if (is_root) {
      whole.state.push_back({buffer.name, std::move(joined)});
    }
  }
  const at::Tensor& counted = parts_.optimizer.updates();
  if (counted.defined()) {
    // A parameter on several shards has had as many updates on each.
    at::Tensor own = at::full({static_cast<int64_t>(parts_.stage.slots().size())}, -1, at::kDouble);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      own.data_ptr<double>()[slots_[i]] = counted.data_ptr<double>()[i];
    }
    for (const at::Tensor& each : group_.collect(root, own)) {
      for (int64_t p = 0; p < own.numel(); ++p) {
        double& most = own.data_ptr<double>()[p];
        most = std::max(most, each.data_ptr<double>()[p]);
      }
    }
    whole.updates = is_root ? own : at::Tensor();
  }
  return whole;
}

void ShardedState::load_weights(std::size_t slot, const at::Tensor& value) {
  if (frees()) {
    load_state(slot, value, weights_);
  }
  if (!freed_) {
    const ParameterSlot& place = parts_.stage.slots()[slot];
    parts_.versions.newest().narrow(0, place.offset, place.elements).copy_(value.reshape({-1}));
  }
}

void ShardedState::load_state(std::size_t slot, const at::Tensor& value, const at::Tensor& state) {
  const ParameterSlot& place = parts_.stage.slots()[slot];
  const ShardRange own = group_.own();
  const int64_t begin = std::max(place.offset, own.begin);
  const int64_t end = std::min(place.offset + place.elements, own.end);
  if (begin < end) {
    state.narrow(0, begin - own.begin, end - begin)
        .copy_(value.reshape({-1}).narrow(0, begin - place.offset, end - begin));
  }
}

void ShardedState::load_updates(std::size_t slot, double updates) {
  const auto found = std::find(slots_.begin(), slots_.end(), slot);
  if (found != slots_.end()) {
    parts_.optimizer.updates().data_ptr<double>()[found - slots_.begin()] = updates;
  }
}

int64_t ShardedState::weight_bytes() const { return bytes_of(weights_) + parts_.versions.bytes(); }

int64_t ShardedState::gradient_bytes() const {
  return bytes_of(gradient_) + bytes_of(parts_.gradient);
}

}  // namespace millrace
