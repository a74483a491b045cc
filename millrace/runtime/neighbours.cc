#include "millrace/runtime/neighbours.h"

#include <algorithm>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"

namespace millrace {
namespace {

Fingerprint border_fingerprint(const TensorSpec& spec, int64_t samples) {
  Fingerprint fingerprint;
  fingerprint.dtype = Fingerprint::kNoTensor;
  if (samples > 0) {
    fingerprint.dtype = static_cast<uint8_t>(spec.dtype);
    fingerprint.num_dimensions = static_cast<uint8_t>(spec.sample_shape.size() + 1);
    fingerprint.sizes[0] = samples;
    std::copy(spec.sample_shape.begin(), spec.sample_shape.end(), fingerprint.sizes.begin() + 1);
  }
  return fingerprint;
}

void add(Transfer& total, const Transfer& transfer) {
  total.wait_s += transfer.wait_s;
  total.bytes += transfer.bytes;
}

}  // namespace

StageBorders::StageBorders(const Model& model, const Stage& stage,
                           const std::vector<int>& stage_of_layer) {
  const int num_stages = 1 + *std::max_element(stage_of_layer.begin(), stage_of_layer.end());
  from_.resize(static_cast<std::size_t>(num_stages));
  to_.resize(static_cast<std::size_t>(num_stages));
  for (std::size_t i = 0; i < stage.inputs().size(); ++i) {
    const int producer = stage.inputs()[i].producer;
    if (producer != kModelInput) {
      const int source = stage_of_layer.at(static_cast<std::size_t>(producer));
      from_[static_cast<std::size_t>(source)].push_back(static_cast<int>(i));
    }
  }
  num_sources_ = static_cast<int>(std::count_if(
      from_.begin(), from_.end(), [](const std::vector<int>& inputs) { return !inputs.empty(); }));
  last_user_.assign(stage.outputs().size(), -1);
  for (std::size_t o = 0; o < stage.outputs().size(); ++o) {
    const int producer = stage.outputs()[o].producer;
    const int own = stage_of_layer.at(static_cast<std::size_t>(producer));
    for (std::size_t l = 0; l < model.layers.size(); ++l) {
      const std::vector<int> sources = model.inputs_of(static_cast<int>(l));
      const int user = stage_of_layer[l];
      if (user == own || std::find(sources.begin(), sources.end(), producer) == sources.end()) {
        continue;
      }
      std::vector<int>& outputs = to_[static_cast<std::size_t>(user)];
      if (outputs.empty() || outputs.back() != static_cast<int>(o)) {
        outputs.push_back(static_cast<int>(o));
      }
      last_user_[o] = std::max(last_user_[o], user);
    }
  }
}

Neighbours::Neighbours(const Stage& stage, const StageBorders& borders, Communicator& communicator,
                       Recorder* recorder)
    : stage_(stage), borders_(borders), communicator_(communicator), recorder_(recorder) {}

void Neighbours::send(const Action& action, Tensors& tensors) {
  const double start_s = monotonic_s();
  const int other = action.peer_stage;
  const bool forward = action.kind == ActionKind::kSendForward;
  Transfer total;
  MessageTag tag{.kind = static_cast<uint8_t>(action.kind),
                 .stage = action.stage,
                 .microbatch = action.first,
                 .to_stage = other};
  for (const int index : forward ? borders_.to(other) : borders_.from(other)) {
    at::Tensor& tensor = tensors[static_cast<std::size_t>(index)];
    const bool kept = forward && borders_.last_user(index) != other;
    add(total, communicator_.send(action.peer, tag, kept ? tensor : std::move(tensor)));
    ++tag.tensor;
  }
  if (recorder_ != nullptr) {
    recorder_->add(action, start_s, monotonic_s(), total.wait_s, total.bytes);
  }
}

at::Tensor Neighbours::receive_one(const Action& action, const Border& border, bool is_gradient,
                                   int64_t samples, int32_t index, Transfer& total) {
  const bool comes = !is_gradient || border.needs_gradient;
  const Fingerprint expected = border_fingerprint(border.spec, comes ? samples : 0);
  const ActionKind sent = is_gradient ? ActionKind::kSendBackward : ActionKind::kSendForward;
  const MessageTag tag{.kind = static_cast<uint8_t>(sent),
                       .stage = action.peer_stage,
                       .microbatch = action.first,
                       .tensor = index,
                       .to_stage = action.stage};
  Transfer transfer;
  at::Tensor tensor = communicator_.receive(action.peer, tag, &expected, &transfer);
  add(total, transfer);
  return tensor;
}

void Neighbours::receive_inputs(const Action& action, int64_t samples, Tensors& inputs) {
  const double start_s = monotonic_s();
  Transfer total;
  int32_t number = 0;
  for (const int index : borders_.from(action.peer_stage)) {
    const auto i = static_cast<std::size_t>(index);
    inputs[i] = receive_one(action, stage_.inputs()[i], false, samples, number++, total);
  }
  if (recorder_ != nullptr) {
    recorder_->add(action, start_s, monotonic_s(), total.wait_s, total.bytes);
  }
}

void Neighbours::receive_gradients(const Action& action, int64_t samples,
                                   std::vector<BorderGradient>& gradients) {
  const double start_s = monotonic_s();
  Transfer total;
  int32_t number = 0;
  for (const int index : borders_.to(action.peer_stage)) {
    const Border& border = stage_.outputs()[static_cast<std::size_t>(index)];
    at::Tensor gradient = receive_one(action, border, true, samples, number++, total);
    if (gradient.defined()) {
      gradients.push_back({index, action.peer_stage, std::move(gradient)});
    }
  }
  if (recorder_ != nullptr) {
    recorder_->add(action, start_s, monotonic_s(), total.wait_s, total.bytes);
  }
}

}  // namespace millrace
