#include "millrace/runtime/worker.h"

#include <algorithm>
#include <utility>

#include "millrace/runtime/internal/evaluation.h"
#include "millrace/runtime/internal/training.h"

namespace millrace {
namespace {

std::vector<int> numbers_of(const std::vector<StageSetup>& stages) {
  std::vector<int> numbers;
  for (const StageSetup& stage : stages) {
    numbers.push_back(stage.stage);
  }
  return numbers;
}

}  // namespace

Worker::Worker(const WorkerSetup& setup, Communicator& communicator)
    : setup_(setup),
      communicator_(&communicator),
      recorder_(communicator.rank(), numbers_of(setup.stages), setup.trace_origin_s,
                setup.max_trace_events) {
  for (const StageSetup& stage : setup_.stages) {
    stages_.push_back(std::make_unique<HeldStage>(setup_, stage, communicator));
  }
  if (setup.train.clip_norm && setup.used_ranks.size() > 1) {
    norm_group_ = communicator.group(setup.used_ranks);
  }
}

Worker::~Worker() = default;

void Worker::note_memory() {
  MemoryUse now;
  for (const std::unique_ptr<HeldStage>& held : stages_) {
    const MemoryUse use = held->memory();
    now.weight_bytes += use.weight_bytes;
    now.gradient_bytes += use.gradient_bytes;
    now.optimizer_bytes += use.optimizer_bytes;
  }
  peak_memory_.weight_bytes = std::max(peak_memory_.weight_bytes, now.weight_bytes);
  peak_memory_.gradient_bytes = std::max(peak_memory_.gradient_bytes, now.gradient_bytes);
  peak_memory_.optimizer_bytes = std::max(peak_memory_.optimizer_bytes, now.optimizer_bytes);
}

int64_t Worker::train(const TrainSegment& segment) {
  const int rank = communicator_->rank();
  const ActionList& actions = segment.lowered->ranks.at(static_cast<std::size_t>(rank));
  for (const std::unique_ptr<HeldStage>& held : stages_) {
    held->versions.start(actions, held->index, segment.lowered->flush);
  }
  Training handler(*this, segment);
  handler.begin();
  // At most: a replica that does all the others' parts, too.
  const int64_t most_steps =
      segment.dealer == nullptr
          ? segment.num_steps
          : segment.num_steps * static_cast<int64_t>(setup_.stages.front().replicas.size());
  const int64_t steps = interpret(*segment.lowered, rank, most_steps, handler);
  handler.finish();
  note_memory();
  return steps;
}

LossSums Worker::evaluate(const LoweredSchedule& lowered, const Feed& feed) {
  Evaluation handler(*this, lowered, feed);
  interpret(lowered, communicator_->rank(), 1, handler);
  return handler.sums();
}

void Worker::finish(const Action& action, int64_t step, int64_t samples, double start_s) const {
  if (setup_.device) {
    setup_.device->finish(action, step, samples, start_s);
  }
}

HeldStage& Worker::held(int stage) {
  return const_cast<HeldStage&>(std::as_const(*this).held(stage));
}

const HeldStage& Worker::held(int stage) const {
  const auto found = std::find_if(stages_.begin(), stages_.end(),
                                  [stage](const auto& held) { return held->index == stage; });
  MILLRACE_CHECK(found != stages_.end(), "the rank does not hold stage " + std::to_string(stage));
  return **found;
}

}  // namespace millrace
