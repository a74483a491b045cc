#include "millrace/runtime/held_stage.h"

#include <ATen/ops/full.h>

#include <utility>

#include "millrace/runtime/worker.h"

namespace millrace {
namespace {

at::Tensor initial_weights(const Stage& stage, uint64_t seed) {
  at::Tensor flat = stage.new_flat();
  stage.initialize(flat, seed);
  return flat;
}

}  // namespace

HeldStage::HeldStage(const WorkerSetup& worker, const StageSetup& setup, Communicator& communicator)
    : index(setup.stage),
      replica(setup.replica),
      stage(*worker.model, setup.layers),
      borders(*worker.model, stage, worker.stage_of_layer),
      versions(stage, initial_weights(stage, worker.seed)),
      optimizer(make_optimizer(worker.train, flat_layout(stage, worker.dtype))),
      gradient(stage.new_flat()),
      gradient_views(stage.views(gradient)),
      buffers(stage.new_buffers()) {
  if (worker.train.batch_norm == "deferred") {
    accumulators = stage.new_accumulators();
  }
  if (setup.replicas.size() > 1) {
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
    if (!buffers.empty()) {
      buffer_group = communicator.group(setup.replicas);
    }
  }
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
      at::Tensor part = buffer.mul(own / samples);
      buffer_group->all_reduce_sum(part);
      buffer.copy_(part);
    }
  }
}

}  // namespace millrace
