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
  bool computed = false;  // B, or I and W, are done
  bool sent = false;      // the input gradient left for the previous stage
  at::Tensor input;       // received, or loaded by the first stage
  at::Tensor output;      // to be sent
  at::Tensor grad;        // received for the backward
  at::Tensor grad_in;     // to be sent back
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

  // Frees the slot once nothing of its microbatch is to come.
  static void release_when_done(Slot& slot) {
    if (slot.computed && slot.sent) {
      slot = Slot{};
    }
  }

 private:
  std::vector<Slot> slots_;
};

MessageTag tag_of(ActionKind send_kind, int sender_stage, int64_t microbatch) {
  return {static_cast<uint8_t>(send_kind), sender_stage, microbatch};
}

Fingerprint border_fingerprint(const TensorSpec& spec, int64_t samples) {
  Fingerprint fingerprint;
  fingerprint.dtype = 255;
  if (samples > 0) {
    fingerprint.dtype = static_cast<uint8_t>(spec.dtype);
    fingerprint.num_dimensions = static_cast<uint8_t>(spec.sample_shape.size() + 1);
    fingerprint.sizes[0] = samples;
    std::copy(spec.sample_shape.begin(), spec.sample_shape.end(), fingerprint.sizes.begin() + 1);
  }
  return fingerprint;
}

// Sends and receives of stage borders, shared by training and evaluation.
class Border {
 public:
  Border(Communicator& communicator, Recorder* recorder)
      : communicator_(communicator), recorder_(recorder) {}

  void send(const Action& action, at::Tensor tensor) {
    const double start_s = monotonic_s();
    const Transfer transfer = communicator_.send(
        action.peer, tag_of(action.kind, action.stage, action.first), std::move(tensor));
    record(action, start_s, transfer);
  }

  // `samples` and `spec` say what must arrive: an empty part is an undefined tensor.
  at::Tensor receive(const Action& action, const TensorSpec& spec, int64_t samples) {
    const Fingerprint expected = border_fingerprint(spec, samples);
    const bool is_forward = action.kind == ActionKind::kReceiveForward;
    const MessageTag tag = tag_of(is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                                  is_forward ? action.stage - 1 : action.stage + 1, action.first);
    const double start_s = monotonic_s();
    Transfer transfer;
    at::Tensor tensor = communicator_.receive(action.peer, tag, &expected, &transfer);
    record(action, start_s, transfer);
    return tensor;
  }

 private:
  void record(const Action& action, double start_s, const Transfer& transfer) {
    if (recorder_ != nullptr) {
      recorder_->add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
    }
  }

  Communicator& communicator_;
  Recorder* recorder_;
};

}  // namespace

class Worker::Training final : public ActionHandler {
 public:
  Training(Worker& worker, const TrainSegment& segment)
      : worker_(worker),
        segment_(segment),
        border_(*worker.communicator_, &worker.recorder_),
        // Without a flush a rank has at most as many microbatches in flight as there are ranks,
        // every replicas-th of them.
        slots_(segment.lowered->flush
                   ? segment.lowered->microbatches_per_step
                   : 2 * static_cast<int64_t>(segment.lowered->ranks.size()) + 1) {}

  bool enter_step(int64_t step) override { return segment_.gate->enter(step); }

  void forward(const Action& action) override {
    const double start_s = monotonic_s();
    for (int64_t m = action.first; m <= action.last; ++m) {
      forward_one(action, m);
    }
    worker_.recorder_.add(action, start_s, monotonic_s(), 0, 0);
  }

  void backward(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      slot.grad_in = worker_.stage_.backward(context_, slot.stash, weights(action), slot.grad,
                                             worker_.gradient_views_);
    });
  }

  void input_gradient(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      slot.grad_in =
          worker_.stage_.backward_input(context_, slot.stash, weights(action), slot.grad);
    });
  }

  void weight_gradient(const Action& action) override {
    run_backward(action, [&](Slot& slot) {
      worker_.stage_.backward_weight(context_, slot.stash, worker_.gradient_views_);
    });
  }

  void send(const Action& action) override {
    Slot& slot = slots_.at(action.first);
    if (action.kind == ActionKind::kSendForward) {
      border_.send(action, std::move(slot.output));
    } else {
      border_.send(action, std::move(slot.grad_in));
      slot.sent = true;
      SlotRing::release_when_done(slot);
    }
  }

  void receive(const Action& action) override {
    const int64_t samples = segment_.feed->part_samples(action.first);
    Slot& slot = slots_.at(action.first);
    if (action.kind == ActionKind::kReceiveForward) {
      slot.input = border_.receive(action, worker_.stage_.input(), samples);
    } else {
      slot.grad = border_.receive(action, worker_.stage_.output(), samples);
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

  void forward_one(const Action& action, int64_t microbatch) {
    const Stage& stage = worker_.stage_;
    Slot& slot = slots_.at(microbatch);
    slot.samples = segment_.feed->part_samples(microbatch);
    LossSums sums;
    if (slot.samples > 0) {
      Batch batch;
      if (stage.is_first() || stage.is_last()) {
        batch = segment_.feed->part(microbatch);
      }
      if (stage.is_first()) {
        slot.input = std::move(batch.input);
      }
      at::Tensor output =
          stage.forward(context_, slot.input, weights(action), batch.target, slot.stash, sums);
      if (!stage.is_last()) {
        slot.output = std::move(output);
      }
    }
    slot.input.reset();
    if (stage.is_last() && sums.samples > 0) {
      segment_.board->report(microbatch / segment_.lowered->microbatches_per_step,
                             worker_.setup_.replica, sums);
    }
  }

  // Runs one of B, I, W on every non-empty microbatch of the action and records it.
  template <typename Compute>
  void run_backward(const Action& action, const Compute& compute) {
    const double start_s = monotonic_s();
    for (int64_t m = action.first; m <= action.last; ++m) {
      Slot& slot = slots_.at(m);
      if (slot.samples > 0) {
        compute(slot);
        slot.grad.reset();
      }
      slot.computed = action.kind != ActionKind::kInputGradient;
      slot.sent = slot.sent || worker_.stage_.is_first();
      SlotRing::release_when_done(slot);
    }
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
  Border border_;
  SlotRing slots_;
  LayerContext context_{.training = true};
  double clip_ = 1;  // of the update at hand
};

class Worker::Evaluation final : public ActionHandler {
 public:
  Evaluation(Worker& worker, const Feed& feed)
      : worker_(worker), feed_(feed), border_(*worker.communicator_, nullptr) {}

  const LossSums& sums() const { return sums_; }

  bool enter_step(int64_t /*step*/) override { return true; }

  void forward(const Action& action) override {
    const Stage& stage = worker_.stage_;
    const int64_t samples = feed_.part_samples(action.first);
    output_.reset();
    if (samples > 0) {
      Batch batch;
      if (stage.is_first() || stage.is_last()) {
        batch = feed_.part(action.first);
      }
      if (stage.is_first()) {
        input_ = std::move(batch.input);
      }
      Stash stash;
      LossSums sums;
      output_ = stage.forward(LayerContext{.training = false}, input_,
                              worker_.versions_.newest_views(), batch.target, stash, sums);
      sums_.loss += sums.loss;
      sums_.correct += sums.correct;
      sums_.samples += sums.samples;
    }
    input_.reset();
  }

  void send(const Action& action) override { border_.send(action, std::move(output_)); }
  void receive(const Action& action) override {
    input_ = border_.receive(action, worker_.stage_.input(), feed_.part_samples(action.first));
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
  Border border_;
  at::Tensor input_;
  at::Tensor output_;
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
      stage_(*setup.model, setup.first_layer, setup.last_layer),
      versions_(stage_, initial_weights(stage_, setup)),
      optimizer_(make_optimizer(setup.train, flat_layout(stage_, setup.dtype))),
      gradient_(stage_.new_flat()),
      gradient_views_(stage_.views(gradient_)),
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
  Evaluation handler(*this, feed);
  interpret(lowered, communicator_->rank(), 1, handler);
  return handler.sums();
}

const Stage& Worker::stage() const { return stage_; }
at::Tensor& Worker::weights() { return versions_.newest(); }
Optimizer& Worker::optimizer() { return *optimizer_; }
const Recorder& Worker::recorder() const { return recorder_; }
int Worker::peak_weight_versions() const { return versions_.peak_live(); }

}  // namespace millrace
