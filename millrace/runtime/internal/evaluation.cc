#include "millrace/runtime/internal/evaluation.h"

#include "millrace/base/clock.h"

namespace millrace {

Worker::Evaluation::Evaluation(Worker& worker, const LoweredSchedule& lowered, const Feed& feed)
    : worker_(worker), feed_(feed) {
  for (const Action& action :
       lowered.ranks[static_cast<std::size_t>(worker.communicator_->rank())]) {
    if (action.kind == ActionKind::kForward) {
      runs_.insert({action.stage, action.first});
    }
  }
  for (const std::unique_ptr<HeldStage>& held : worker.stages_) {
    lanes_.emplace(held->index,
                   Lane{held.get(),
                        Neighbours(held->stage, held->borders, *worker.communicator_, nullptr),
                        {}});
  }
}

Tensors& Worker::Evaluation::inputs(int stage, int64_t microbatch) {
  Tensors& found = inputs_[{stage, microbatch}];
  found.resize(lanes_.at(stage).held->stage.inputs().size());
  return found;
}

void Worker::Evaluation::forward(const Action& action) {
  const double start_s = monotonic_s();
  Lane& own = lane(action);
  const Stage& stage = own.held->stage;
  const int64_t samples = feed_.part_samples(action.first);
  own.outputs.assign(stage.outputs().size(), at::Tensor());
  Tensors taken = std::move(inputs(action.stage, action.first));
  inputs_.erase({action.stage, action.first});
  if (samples > 0) {
    Batch batch;
    if (stage.takes_data() || stage.is_last()) {
      batch = feed_.part(action.first);
    }
    if (stage.takes_data()) {
      taken.front() = std::move(batch.input);
    }
    Stash stash;
    LossSums sums;
    own.outputs = stage.forward(
        LayerContext{
            .training = false, .buffers = own.held->buffers, .peers = own.held->layer_peers()},
        taken, own.held->versions.newest_views(), batch.target, stash, sums);
    if (own.held->part == 0) {  // all parts see the same samples
      sums_.loss += sums.loss;
      sums_.correct += sums.correct;
      sums_.samples += sums.samples;
    }
  }
  // To stages that this rank runs on the microbatch; the others are sent it.
  for (auto& [index, user] : lanes_) {
    const std::vector<int>& made = own.held->borders.to(index);
    const bool here = runs_.contains({index, action.first});
    for (std::size_t k = 0; here && k < made.size(); ++k) {
      const auto input = static_cast<std::size_t>(user.held->borders.from(action.stage)[k]);
      inputs(index, action.first)[input] = own.outputs[static_cast<std::size_t>(made[k])];
    }
  }
  worker_.finish(action, 0, samples, start_s);
}

void Worker::Evaluation::send(const Action& action) {
  Lane& own = lane(action);
  own.neighbours.send(action, own.outputs);
}

void Worker::Evaluation::receive(const Action& action) {
  lane(action).neighbours.receive_inputs(action, feed_.part_samples(action.first),
                                         inputs(action.stage, action.first));
}

void Worker::Evaluation::refuse(const Action& action) {
  throw Error(ErrorCode::kInternal, "an evaluation holds forwards only")
      .at_action(to_string(action));
}

}  // namespace millrace
