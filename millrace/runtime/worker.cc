#include "millrace/runtime/worker.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/runtime/clip.h"

namespace millrace {
namespace {

// One microbatch between its first and last action on this rank. An empty part has no samples: its
// messages are undefined tensors and nothing is computed.
struct Slot {
  int64_t microbatch = kNone;
  int64_t samples = 0;
  bool computed = false;                  // B, or I and W, are done
  int num_sent_back = 0;                  // stages that got their gradients
  Tensors inputs;                         // by the stage's inputs(): received, or loaded
  Tensors outputs;                        // by the stage's outputs(), to be sent
  std::vector<BorderGradient> gradients;  // received for the backward
  Tensors input_gradients;                // by inputs(), to be sent back
  Stash stash;
};

// The slots of all microbatches in flight. Those always lie in a window of consecutive
// microbatches, so a power-of-two ring indexed by the microbatch needs no search.
class SlotRing {
 public:
  explicit SlotRing(int64_t window)
      : slots_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(window, 2)))) {}

  Slot& at(int64_t microbatch) {
    Slot& slot = slots_[static_cast<uint64_t>(microbatch) & (slots_.size() - 1)];
    if (slot.microbatch != microbatch) {
      MILLRACE_CHECK(slot.microbatch == kNone, "two microbatches in flight share a slot");
      slot.microbatch = microbatch;
    }
    return slot;
  }

  // Frees the slot once nothing of its microbatch is to come: gradients go to `num_sources` stages.
  static void release_when_done(Slot& slot, int num_sources) {
    if (slot.computed && slot.num_sent_back == num_sources) {
      slot = Slot{};
    }
  }

 private:
  std::vector<Slot> slots_;
};

}  // namespace

class Worker::Training final : public ActionHandler {
 public:
  Training(Worker& worker, const TrainSegment& segment)
      : worker_(worker),
        segment_(segment),
        neighbours_(worker.stage_, worker.borders_, *segment.lowered, *worker.communicator_,
                    &worker.recorder_),
        // Without a flush a rank has at most as many microbatches in flight as there are ranks,
        // every replicas-th of them.
        slots_(segment.lowered->flush
                   ? segment.lowered->microbatches_per_step
                   : 2 * static_cast<int64_t>(segment.lowered->ranks.size()) + 1) {}

  bool enter_step(int64_t step) override { return segment_.gate->enter(step); }

  void forward(const Action& action) override {
    const double start_s = monotonic_s();
    int64_t samples = 0;
    for (int64_t m = action.first; m <= action.last; ++m) {
      samples += forward_one(action, m);
    }
    worker_.finish(action.kind, samples, start_s);
    worker_.recorder_.add(action, start_s, monotonic_s(), 0, 0);
  }

  void backward(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      slot.input_gradients = worker_.stage_.backward(slot.stash, weights(action), slot.gradients,
                                                     worker_.gradient_views_);
    });
  }

  void input_gradient(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      slot.input_gradients =
          worker_.stage_.backward_input(slot.stash, weights(action), slot.gradients);
    });
  }

  void weight_gradient(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      worker_.stage_.backward_weight(slot.stash, worker_.gradient_views_);
    });
  }

  void send(const Action& action) override {
    Slot& slot = slots_.at(action.first);
    const bool forward = action.kind == ActionKind::kSendForward;
    // An empty part made none of them.
    Tensors& tensors = forward ? slot.outputs : slot.input_gradients;
    tensors.resize(forward ? worker_.stage_.outputs().size() : worker_.stage_.inputs().size());
    neighbours_.send(action, tensors);
    if (!forward) {
      ++slot.num_sent_back;
      SlotRing::release_when_done(slot, worker_.borders_.num_sources());
    }
  }

  void receive(const Action& action) override {
    const int64_t samples = segment_.feed->part_samples(action.first);
    Slot& slot = slots_.at(action.first);
    if (action.kind == ActionKind::kReceiveForward) {
      slot.inputs.resize(worker_.stage_.inputs().size());
      neighbours_.receive_inputs(action, samples, slot.inputs);
    } else {
      neighbours_.receive_gradients(action, samples, slot.gradients);
    }
  }

  void reduce(const Action& action) override {
    MILLRACE_CHECK(worker_.exchange_ != nullptr, "REDUCE on a stage with one replica");
    const double start_s = monotonic_s();
    Transfer transfer;
    worker_.exchange_->reduce(worker_.gradient_, transfer);
    worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
  }

  void norm(const Action& action) override {
    const WorkerSetup& setup = worker_.setup_;
    const double start_s = monotonic_s();
    // Replicas hold the same gradient: the first one brings it, the others bring nothing.
    at::Tensor sum = at::zeros({1}, at::kDouble);
    if (setup.replica == 0) {
      *sum.data_ptr<double>() = squared_norm(worker_.gradient_);
    }
    Transfer transfer;
    if (worker_.norm_group_ != nullptr) {
      transfer = worker_.norm_group_->all_reduce_sum(sum);
    }
    const double norm = std::sqrt(*sum.data_ptr<double>()) / update_samples(action);
    clip_ = clip_factor(norm, setup.train.clip_norm.value());
    if (setup.stage == 0 && setup.replica == 0) {
      for (int64_t step = first_step(action); step <= last_step(action); ++step) {
        segment_.board->report_norm(step, norm);
      }
    }
    worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
  }

  void step(const Action& action) override {
    const double start_s = monotonic_s();
    if (worker_.exchange_ != nullptr) {
      worker_.exchange_->step([&] { update(action); });
    } else {
      update(action);
    }
    worker_.finish(action.kind, 0, start_s);
    const double end_s = monotonic_s();
    worker_.recorder_.add(action, start_s, end_s, 0, 0);
    worker_.recorder_.step_done(end_s, last_step(action) - first_step(action) + 1);
  }

 private:
  // Steps whose minibatches an update applies: one, or a round of replicas without a flush.
  int64_t first_step(const Action& action) const {
    return action.first / segment_.lowered->microbatches_per_step;
  }
  int64_t last_step(const Action& action) const {
    return action.last / segment_.lowered->microbatches_per_step;
  }

  double update_samples(const Action& action) const {
    int64_t samples = 0;
    for (int64_t step = first_step(action); step <= last_step(action); ++step) {
      samples += segment_.feed->step_samples(step);
    }
    return static_cast<double>(samples);
  }

  const WeightViews& weights(const Action& action) const {
    return worker_.versions_.read(action.version);
  }

  // Returns the samples of the microbatch.
  int64_t forward_one(const Action& action, int64_t microbatch) {
    const Stage& stage = worker_.stage_;
    Slot& slot = slots_.at(microbatch);
    slot.samples = segment_.feed->part_samples(microbatch);
    LossSums sums;
    if (slot.samples > 0) {
      Batch batch;
      if (stage.takes_data() || stage.is_last()) {
        batch = segment_.feed->part(microbatch);
      }
      if (stage.takes_data()) {
        slot.inputs.resize(stage.inputs().size());
        slot.inputs.front() = std::move(batch.input);
      }
      const LayerContext context{
          .training = true,
          .seed = worker_.setup_.seed,
          .step = segment_.first_step + microbatch / segment_.lowered->microbatches_per_step,
          .first_place = segment_.feed->first_place(microbatch),
          .buffers = worker_.buffers_};
      slot.outputs =
          stage.forward(context, slot.inputs, weights(action), batch.target, slot.stash, sums);
      worker_.buffer_samples_ += slot.samples;
      if (stage.is_last()) {
        slot.outputs.back().reset();  // the model's own output goes nowhere
      }
    }
    slot.inputs.clear();
    if (stage.is_last() && sums.samples > 0) {
      segment_.board->report(microbatch / segment_.lowered->microbatches_per_step,
                             worker_.setup_.replica, sums);
    }
    return slot.samples;
  }

  // Runs one of B, I, W on every non-empty microbatch of the action and records it.
  template <typename Compute>
  void run_backward(const Action& action, const Compute& compute) {
    const double start_s = monotonic_s();
    int64_t samples = 0;
    for (int64_t m = action.first; m <= action.last; ++m) {
      Slot& slot = slots_.at(m);
      samples += slot.samples;
      if (slot.samples > 0) {
        compute(slot);
        slot.gradients.clear();
      }
      slot.computed = action.kind != ActionKind::kInputGradient;
      SlotRing::release_when_done(slot, worker_.borders_.num_sources());
    }
    worker_.finish(action.kind, samples, start_s);
    worker_.recorder_.add(action, start_s, monotonic_s(), 0, 0);
  }

  void update(const Action& action) {
    const WorkerSetup& setup = worker_.setup_;
    const int64_t step = last_step(action);
    const double samples = update_samples(action);
    if (setup.divide_twice) {
      worker_.gradient_.div_(samples);
    }
    if (segment_.observer != nullptr) {
      segment_.observer->before_update(setup.stage, setup.replica, step, worker_.gradient_, samples,
                                       worker_.versions_.newest());
    }
    const at::Tensor current = worker_.versions_.newest();
    at::Tensor& target = worker_.versions_.buffer_for(action.version);
    worker_.optimizer_->update(
        current, target, worker_.gradient_,
        {.samples = samples, .lr = segment_.lr->at(segment_.first_step + step), .clip = clip_});
    worker_.versions_.made(action.version);
    if (segment_.observer != nullptr) {
      segment_.observer->after_update(setup.stage, setup.replica, step, worker_.versions_.newest());
    }
  }

  Worker& worker_;
  const TrainSegment& segment_;
  Neighbours neighbours_;
  SlotRing slots_;
  double clip_ = 1;  // of the update at hand
};

class Worker::Evaluation final : public ActionHandler {
 public:
  Evaluation(Worker& worker, const LoweredSchedule& lowered, const Feed& feed)
      : worker_(worker),
        feed_(feed),
        neighbours_(worker.stage_, worker.borders_, lowered, *worker.communicator_, nullptr) {}

  const LossSums& sums() const { return sums_; }

  bool enter_step(int64_t /*step*/) override { return true; }

  void forward(const Action& action) override {
    const double start_s = monotonic_s();
    const Stage& stage = worker_.stage_;
    const int64_t samples = feed_.part_samples(action.first);
    inputs_.resize(stage.inputs().size());
    outputs_.assign(stage.outputs().size(), at::Tensor());
    if (samples > 0) {
      Batch batch;
      if (stage.takes_data() || stage.is_last()) {
        batch = feed_.part(action.first);
      }
      if (stage.takes_data()) {
        inputs_.front() = std::move(batch.input);
      }
      Stash stash;
      LossSums sums;
      outputs_ =
          stage.forward(LayerContext{.training = false, .buffers = worker_.buffers_}, inputs_,
                        worker_.versions_.newest_views(), batch.target, stash, sums);
      sums_.loss += sums.loss;
      sums_.correct += sums.correct;
      sums_.samples += sums.samples;
    }
    inputs_.clear();
    worker_.finish(action.kind, samples, start_s);
  }

  void send(const Action& action) override { neighbours_.send(action, outputs_); }
  void receive(const Action& action) override {
    inputs_.resize(worker_.stage_.inputs().size());
    neighbours_.receive_inputs(action, feed_.part_samples(action.first), inputs_);
  }

  void backward(const Action& action) override { refuse(action); }
  void input_gradient(const Action& action) override { refuse(action); }
  void weight_gradient(const Action& action) override { refuse(action); }
  void reduce(const Action& action) override { refuse(action); }
  void norm(const Action& action) override { refuse(action); }
  void step(const Action& action) override { refuse(action); }

 private:
  [[noreturn]] static void refuse(const Action& action) {
    throw Error(ErrorCode::kInternal, "an evaluation holds forwards only")
        .at_action(to_string(action));
  }

  Worker& worker_;
  const Feed& feed_;
  Neighbours neighbours_;
  Tensors inputs_;
  Tensors outputs_;
  LossSums sums_;
};

namespace {

at::Tensor initial_weights(const Stage& stage, const WorkerSetup& setup) {
  at::Tensor flat = stage.new_flat();
  stage.initialize(flat, setup.seed);
  return flat;
}

}  // namespace

Worker::Worker(const WorkerSetup& setup, Communicator& communicator)
    : setup_(setup),
      communicator_(&communicator),
      stage_(*setup.model, setup.layers),
      borders_(*setup.model, stage_, setup.stage_of_layer),
      versions_(stage_, initial_weights(stage_, setup)),
      optimizer_(make_optimizer(setup.train, flat_layout(stage_, setup.dtype))),
      gradient_(stage_.new_flat()),
      gradient_views_(stage_.views(gradient_)),
      buffers_(stage_.new_buffers()),
      recorder_(communicator.rank(), setup.stage, setup.trace_origin_s, setup.max_trace_events) {
  if (setup.replicas.size() > 1) {
    exchange_ = make_exchange(setup.rule, setup.replicas, communicator);
  }
  if (setup.train.clip_norm && setup.used_ranks.size() > 1) {
    norm_group_ = communicator.group(setup.used_ranks);
  }
}

Worker::~Worker() = default;

int64_t Worker::train(const TrainSegment& segment) {
  const int rank = communicator_->rank();
  const ActionList& actions = segment.lowered->ranks.at(static_cast<std::size_t>(rank));
  versions_.start(actions, segment.lowered->flush);
  Training handler(*this, segment);
  return interpret(*segment.lowered, rank, segment.num_steps, handler);
}

LossSums Worker::evaluate(const LoweredSchedule& lowered, const Feed& feed) {
  Evaluation handler(*this, lowered, feed);
  interpret(lowered, communicator_->rank(), 1, handler);
  return handler.sums();
}

void Worker::finish(ActionKind kind, int64_t samples, double start_s) const {
  if (setup_.device) {
    setup_.device->finish(kind, samples, start_s);
  }
}

const Stage& Worker::stage() const { return stage_; }
at::Tensor& Worker::weights() { return versions_.newest(); }
Optimizer& Worker::optimizer() { return *optimizer_; }
Tensors& Worker::buffers() { return buffers_; }
int64_t Worker::take_buffer_samples() { return std::exchange(buffer_samples_, 0); }
const Recorder& Worker::recorder() const { return recorder_; }
int Worker::peak_weight_versions() const { return versions_.peak_live(); }

}  // namespace millrace
