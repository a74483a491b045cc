#include "millrace/runtime/held_stage.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "millrace/runtime/clip.h"
#include "millrace/runtime/worker.h"

namespace millrace {
namespace {

at::Tensor initial_weights(const Stage& stage, uint64_t seed) {
  at::Tensor flat = stage.new_flat();
  stage.initialize(flat, seed);
  return flat;
}

bool shards(const StageSetup& setup) {
  return setup.shard != Shard::kNothing && setup.replicas.size() > 1;
}

FlatLayout layout_of(const Stage& stage, const StageSetup& setup, at::ScalarType dtype, int rank) {
  if (!shards(setup)) {
    return flat_layout(stage, dtype);
  }
  const auto member = std::find(setup.replicas.begin(), setup.replicas.end(), rank);
  const ShardRange own =
      shard_range(static_cast<int>(member - setup.replicas.begin()),
                  static_cast<int>(setup.replicas.size()), stage.flat_elements());
  return shard_layout(stage, own, dtype).flat;
}

}  // namespace

HeldStage::HeldStage(const WorkerSetup& worker, const StageSetup& setup, Communicator& communicator)
    : index(setup.stage),
      replica(setup.replica),
      part(setup.part),
      place(setup.replica * std::max(1, static_cast<int>(setup.parts.size())) + setup.part),
      peers(setup.parts.size() > 1
                ? std::make_unique<StagePeers>(communicator, setup.parts, setup.part, setup.stage)
                : nullptr),
      stage(*worker.model, setup.layers, Ties::kRefused,
            {setup.part, std::max(1, static_cast<int>(setup.parts.size()))}),
      borders(*worker.model, stage, worker.stage_of_layer),
      versions(stage, initial_weights(stage, worker.seed)),
      optimizer(
          make_optimizer(worker.train, layout_of(stage, setup, worker.dtype, communicator.rank()))),
      gradient(stage.new_flat()),
      gradient_views(stage.views(gradient)),
      buffers(stage.new_buffers()) {
  if (worker.train.batch_norm == "deferred") {
    accumulators = stage.new_accumulators();
  }
  if (setup.replicas.size() > 1 && !buffers.empty()) {
    buffer_group = communicator.group(setup.replicas);
  }
  if (shards(setup)) {
    MILLRACE_CHECK(worker.rule == "bsp", "a sharded stage has no rule of its own");
    sharded = std::make_unique<ShardedState>(
        setup.shard, ShardGroup(communicator, setup.stage, setup.replicas, stage.flat_elements()),
        ShardedState::Parts{stage, versions, gradient, gradient_views, *optimizer});
  } else if (setup.replicas.size() > 1) {
    ExchangeSetup own{.rule = worker.rule,
                      .rule_options = worker.rule_options,
                      .seed = worker.seed,
                      .stage = setup.stage,
                      .replicas = setup.replicas,
                      .nodes = {},
                      .dtype = worker.dtype,
                      .elements = stage.flat_elements(),
                      .work = worker.device ? worker.device->rule_work(setup.stage) : RuleWork()};
    for (const int rank : setup.replicas) {
      own.nodes.push_back(
          worker.node_of_rank.empty() ? 0 : worker.node_of_rank.at(static_cast<std::size_t>(rank)));
    }
    exchange = std::make_unique<Exchange>(own, communicator);
  }
}

MemoryUse HeldStage::memory() const {
  MemoryUse use;
  use.weight_bytes = sharded != nullptr ? sharded->weight_bytes() : versions.bytes();
  use.gradient_bytes =
      sharded != nullptr ? sharded->gradient_bytes() : static_cast<int64_t>(gradient.nbytes());
  for (const OptimizerBuffer& buffer : optimizer->state()) {
    use.optimizer_bytes += static_cast<int64_t>(buffer.tensor.nbytes());
  }
  return use;
}

double HeldStage::squared_gradient_norm() const {
  if (part == 0) {
    return squared_norm(gradient);
  }
  double sum = 0;
  for (const ParameterSlot& slot : stage.slots()) {
    if (!slot.rows.empty()) {
      sum += squared_norm(gradient.narrow(0, slot.offset, slot.elements));
    }
  }
  return sum;
}

void HeldStage::average_buffers() {
  const auto own = static_cast<double>(std::exchange(buffer_samples, 0));
  if (buffer_group == nullptr) {
    return;
  }
  at::Tensor all = at::full({1}, own, at::kDouble);
  buffer_group->all_reduce_sum(all);
  const double samples = *all.data_ptr<double>();
  for (at::Tensor& buffer : buffers) {
    if (samples > 0) {
      at::Tensor share = buffer.mul(own / samples);
      buffer_group->all_reduce_sum(share);
      buffer.copy_(share);
    }
  }
}

}  // namespace millrace
