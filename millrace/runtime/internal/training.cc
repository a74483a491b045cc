#include "millrace/runtime/internal/training.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/runtime/clip.h"

namespace millrace {

using internal::Slot;
using internal::SlotRing;

namespace {

// Outside of STEP: the newest version is the one there is.
StageTensors tensors_of(HeldStage& held) {
  return {held.gradient, held.versions.newest(), held.versions.newest()};
}

bool loads_data(const Stage& stage) { return stage.takes_data() || stage.is_last(); }

// The fault of `verify --break scale`, on elements [begin, end) of gradient sums that are final on
// this replica.
void divide_again(const WorkerSetup& setup, const HeldStage& held, double samples, int64_t begin,
                  int64_t end) {
  if (setup.divide_twice) {
    held.gradient.narrow(0, begin, end - begin).div_(samples);
  }
}

}  // namespace

Worker::Training::Lane::Lane(HeldStage& own, Worker& worker, const ActionList& actions)
    : held(own),
      neighbours(own.stage, own.borders, *worker.communicator_, &worker.recorder_),
      slots(internal::flight_window(actions)) {
  int64_t last = 0;
  for (const Action& action : actions) {
    last = std::max(last, action.last);
  }
  runs_.resize(static_cast<std::size_t>(last) + 1);
  reduce_after_.resize(static_cast<std::size_t>(last) + 1);
  int64_t newest_backward = kNone;
  for (const Action& action : actions) {
    for (int64_t m = action.first;
         action.kind == ActionKind::kForward && action.stage == own.index && m <= action.last;
         ++m) {
      runs_[static_cast<std::size_t>(m)] = true;
    }
    if (action.stage != own.index) {
      continue;
    }
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient) {
      newest_backward = action.last;
    } else if (action.kind == ActionKind::kReduce && newest_backward != kNone) {
      reduce_after_[static_cast<std::size_t>(newest_backward)] = &action;
    }
  }
  if (worker.setup_.recompute != Recompute::kNothing) {
    scratch_buffers = own.stage.new_buffers();
  }
}

Worker::Training::Training(Worker& worker, const TrainSegment& segment)
    : worker_(worker), segment_(segment) {
  const ActionList& actions =
      segment.lowered->ranks[static_cast<std::size_t>(worker.communicator_->rank())];
  lane_of_.resize(static_cast<std::size_t>(segment.lowered->num_stages));
  for (const std::unique_ptr<HeldStage>& held : worker.stages_) {
    lanes_.push_back(std::make_unique<Lane>(*held, worker, actions));
    lane_of_[static_cast<std::size_t>(held->index)] = lanes_.back().get();
  }
  for (const std::unique_ptr<Lane>& maker : lanes_) {
    for (const std::unique_ptr<Lane>& user : lanes_) {
      if (maker != user && !maker->held.borders.to(user->held.index).empty()) {
        maker->users.push_back(user.get());
        user->makers.push_back(maker.get());
      }
    }
  }
  if (segment.dealer == nullptr) {
    start_loader();
    return;
  }
  for (const std::unique_ptr<Lane>& own : lanes_) {
    own->blocks = microbatches_by_replica(*segment.lowered, own->held.index);
    const std::vector<int64_t>& block = own->blocks[static_cast<std::size_t>(own->held.replica)];
    own->place_in_block.resize(static_cast<std::size_t>(segment.lowered->microbatches_per_step));
    for (std::size_t i = 0; i < block.size(); ++i) {
      own->place_in_block[static_cast<std::size_t>(block[i])] = static_cast<int64_t>(i);
    }
  }
}

// Parts that are dealt while the segment runs are known too late to load them ahead.
void Worker::Training::start_loader() {
  std::vector<bool> loads(lane_of_.size());
  for (const std::unique_ptr<Lane>& own : lanes_) {
    loads[static_cast<std::size_t>(own->held.index)] = loads_data(own->held.stage);
  }
  LoadOrder order = load_order(*segment_.lowered, worker_.communicator_->rank(), segment_.num_steps,
                               loads, worker_.setup_.recompute == Recompute::kStage);
  if (worker_.setup_.train.loading == "parallel" && !order.list.empty()) {
    loader_ = std::make_unique<Loader>(*segment_.feed, std::move(order),
                                       [gate = segment_.gate] { return gate->broken(); });
  }
}

Batch Worker::Training::load(const Stage& stage, int64_t number) const {
  if (!loads_data(stage)) {
    return {};
  }
  return loader_ == nullptr ? segment_.feed->part(number) : loader_->take(number);
}

// Records a compute action that began at `start_s`. An emulated device begins when the samples are
// there.
void Worker::Training::finish_compute(const Action& action, int64_t samples, double start_s) {
  const double wait_s = loader_ == nullptr ? 0.0 : loader_->take_wait_s();
  worker_.finish(action, last_step(action), samples, start_s + wait_s);
  StagePeers* peers = lane(action).held.peers.get();
  const Transfer moved = peers == nullptr ? Transfer{} : peers->take_transfer();
  worker_.recorder_.add(action, start_s, monotonic_s(), wait_s + moved.wait_s, moved.bytes);
}

bool Worker::Training::enter_step(int64_t step) {
  if (segment_.dealer == nullptr) {
    return segment_.gate->enter(step);
  }
  const std::optional<Dealer::Part> part =
      segment_.dealer->part(worker_.stages_.front()->replica, step);
  if (!part || !segment_.gate->enter(part->step)) {
    return false;
  }
  part_ = *part;
  return true;
}

int64_t Worker::Training::fed(const Lane& own, int64_t microbatch) const {
  if (segment_.dealer == nullptr) {
    return microbatch;
  }
  const int64_t place = own.place_in_block[static_cast<std::size_t>(listed(microbatch))];
  return part_.step * segment_.lowered->microbatches_per_step +
         own.blocks[static_cast<std::size_t>(part_.slot)][static_cast<std::size_t>(place)];
}

void Worker::Training::forward(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  Lane& own = lane(action);
  int64_t samples = 0;
  for (int64_t m = action.first; m <= action.last; ++m) {
    samples += forward_one(own, action, m);
  }
  finish_compute(action, samples, start_s);
  measure_stash();
}

// Before a backward: gradients are added to whole sums.
void Worker::Training::prepare_gradient(Lane& own) {
  if (own.held.sharded != nullptr) {
    own.held.sharded->prepare_gradient();
    worker_.note_memory();
  }
}

void Worker::Training::backward(const Action& action) {
  prepare_gradient(lane(action));
  run_backward(action, [&](Lane& own, Slot& slot, const WeightViews& weights) {
    slot.input_gradients =
        own.held.stage.backward(slot.stash, weights, slot.gradients, own.held.gradient_views,
                                announcer(own, slot.microbatch));
  });
}

void Worker::Training::input_gradient(const Action& action) {
  run_backward(action, [&](Lane& own, Slot& slot, const WeightViews& weights) {
    slot.input_gradients = own.held.stage.backward_input(slot.stash, weights, slot.gradients);
  });
}

void Worker::Training::weight_gradient(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  Lane& own = lane(action);
  prepare_gradient(own);
  std::vector<Stash*> stashes;
  int64_t samples = 0;
  for (int64_t m = action.first; m <= action.last; ++m) {
    Slot& slot = own.slots.at(m);
    samples += slot.samples;
    if (slot.samples > 0) {
      stashes.push_back(&slot.stash);
    }
  }
  measure_stash();
  own.held.stage.backward_weight(stashes, own.held.gradient_views, announcer(own, action.last));
  for (int64_t m = action.first; m <= action.last; ++m) {
    Slot& slot = own.slots.at(m);
    slot.computed = true;
    SlotRing::release_when_done(slot, own.held.borders.num_sources());
  }
  worker_.finish(action, last_step(action), samples, start_s);
  worker_.recorder_.add(action, start_s, monotonic_s(), 0, 0);
}

void Worker::Training::send(const Action& action) {
  announce(action);
  Lane& own = lane(action);
  Slot& slot = own.slots.at(action.first);
  const bool is_forward = action.kind == ActionKind::kSendForward;
  // An empty part made none of them.
  Tensors& tensors = is_forward ? slot.outputs : slot.input_gradients;
  tensors.resize(is_forward ? own.held.stage.outputs().size() : own.held.stage.inputs().size());
  own.neighbours.send(action, tensors);
  if (!is_forward) {
    ++slot.num_sent_back;
    SlotRing::release_when_done(slot, own.held.borders.num_sources());
  }
}

void Worker::Training::receive(const Action& action) {
  announce(action);
  Lane& own = lane(action);
  const int64_t samples = segment_.feed->part_samples(fed(own, action.first));
  Slot& slot = own.slots.at(action.first);
  if (action.kind == ActionKind::kReceiveForward) {
    slot.inputs.resize(own.held.stage.inputs().size());
    own.neighbours.receive_inputs(action, samples, slot.inputs);
  } else {
    own.neighbours.receive_gradients(action, samples, slot.gradients);
  }
}

void Worker::Training::reduce(const Action& action) {
  announce(action);
  Lane& own = lane(action);
  HeldStage& held = own.held;
  const double start_s = monotonic_s();
  Transfer transfer;
  if (held.sharded != nullptr) {
    transfer = held.sharded->reduce();
    worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
    return;
  }
  MILLRACE_CHECK(held.exchange != nullptr, "REDUCE on a stage with one replica");
  own.update = update_of(own, first_step(action), last_step(action));
  if (announces(own) && !held.exchange->announced()) {
    // Without a sample in the last backward: the others' layers are told of all the same.
    held.stage.tell_all(announcer(own));
  }
  transfer = std::exchange(own.beside, Transfer{});
  if (!held.exchange->announced()) {
    divide_again(worker_.setup_, held, own.update.samples, 0, held.gradient.numel());
  }
  held.exchange->reduce(own.update, tensors_of(held), transfer);
  worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
  record_beside(held, action);
}

// Reductions of the rule that are done by now.
void Worker::Training::record_beside(HeldStage& held, Action action) {
  action.kind = ActionKind::kReduce;
  action.version = kNone;
  for (const BesideReduction& each : held.exchange->take_beside()) {
    worker_.recorder_.add_beside(action, each.start_s, each.end_s, each.transfer.wait_s,
                                 each.transfer.bytes);
  }
}

void Worker::Training::norm(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  // Replicas hold the same gradient: the first one's parts bring it, the others bring nothing.
  // Those of a sharded stage bring their shards.
  at::Tensor sum = at::zeros({1}, at::kDouble);
  bool reports = false;
  for (const std::unique_ptr<HeldStage>& held : worker_.stages_) {
    if (held->sharded != nullptr) {
      *sum.data_ptr<double>() += squared_norm(held->sharded->gradient());
    } else if (held->replica == 0) {
      *sum.data_ptr<double>() += held->squared_gradient_norm();
    }
    reports = reports || (held->replica == 0 && held->index == 0 && held->part == 0);
  }
  Transfer transfer;
  if (worker_.norm_group_ != nullptr) {
    transfer = worker_.norm_group_->all_reduce_sum(sum);
  }
  const double norm = std::sqrt(*sum.data_ptr<double>()) / update_samples(action);
  clip_ = clip_factor(norm, worker_.setup_.train.clip_norm.value());
  for (int64_t step = first_step(action); reports && step <= last_step(action); ++step) {
    segment_.board->report_norm(step, norm);
  }
  worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
}

void Worker::Training::step(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  Lane& own = lane(action);
  HeldStage& held = own.held;
  Transfer transfer;
  update(own, action, transfer);
  // What a rule does takes its time where the rule does it, if the device knows how long.
  const bool waited = held.exchange != nullptr && worker_.setup_.device &&
                      worker_.setup_.device->rule_work(held.index);
  if (!waited) {
    worker_.finish(action, last_step(action), 0, start_s);
  }
  const double end_s = monotonic_s();
  worker_.recorder_.add(action, start_s, end_s, transfer.wait_s, transfer.bytes);
  if (held.exchange != nullptr) {
    record_beside(held, action);
  }
  if (&held == worker_.stages_.front().get()) {
    worker_.recorder_.step_done(end_s, last_step(action) - first_step(action) + 1);
  }
}

void Worker::Training::gather(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  HeldStage& held = lane(action).held;
  MILLRACE_CHECK(held.sharded != nullptr, "GATHER of a stage that is not sharded");
  const Transfer transfer = held.sharded->gather();
  worker_.note_memory();
  worker_.recorder_.add(action, start_s, monotonic_s(), transfer.wait_s, transfer.bytes);
}

void Worker::Training::free(const Action& action) {
  announce(action);
  const double start_s = monotonic_s();
  HeldStage& held = lane(action).held;
  MILLRACE_CHECK(held.sharded != nullptr, "FREE of a stage that is not sharded");
  held.sharded->free();
  worker_.recorder_.add(action, start_s, monotonic_s(), 0, 0);
}

// Steps whose minibatches an update applies: one, or a round of replicas without a flush.
int64_t Worker::Training::first_step(const Action& action) const {
  return action.first / segment_.lowered->microbatches_per_step;
}
int64_t Worker::Training::last_step(const Action& action) const {
  return action.last / segment_.lowered->microbatches_per_step;
}

double Worker::Training::update_samples(const Action& action) const {
  int64_t samples = 0;
  for (int64_t step = first_step(action); step <= last_step(action); ++step) {
    samples += segment_.feed->step_samples(step);
  }
  return static_cast<double>(samples);
}

// Loads what the stage takes of the data, and runs it on the slot's microbatch.
Tensors Worker::Training::run_forward(Lane& own, Slot& slot, const WeightViews& weights,
                                      at::TensorList buffers, at::TensorList accumulators,
                                      LossSums& sums) const {
  const Stage& stage = own.held.stage;
  const int64_t number = fed(own, slot.microbatch);
  Batch batch = load(stage, number);
  if (stage.takes_data()) {
    slot.inputs.resize(stage.inputs().size());
    slot.inputs.front() = std::move(batch.input);
  }
  const LayerContext context{
      .training = true,
      .seed = worker_.setup_.seed,
      .step = segment_.first_step + number / segment_.lowered->microbatches_per_step,
      .first_place = segment_.feed->first_place(number),
      .buffers = buffers,
      .accumulators = accumulators,
      .peers = own.held.layer_peers()};
  return stage.forward(context, slot.inputs, weights, batch.target, slot.stash, sums);
}

// Returns the samples of the microbatch.
int64_t Worker::Training::forward_one(Lane& own, const Action& action, int64_t microbatch) {
  HeldStage& held = own.held;
  Slot& slot = own.slots.at(microbatch);
  slot.samples = segment_.feed->part_samples(fed(own, microbatch));
  const Recompute recompute = worker_.setup_.recompute;
  LossSums sums;
  if (slot.samples > 0) {
    slot.stash.keeps_inputs_only = recompute == Recompute::kLayer;
    slot.outputs = run_forward(own, slot, held.versions.read(action.version), held.buffers,
                               held.accumulators, sums);
    held.buffer_samples += slot.samples;
    if (held.stage.is_last()) {
      slot.outputs.back().reset();  // the model's own output goes nowhere
    }
  }
  if (recompute == Recompute::kStage) {
    slot.stash = Stash{};
    if (held.stage.takes_data() && !slot.inputs.empty()) {
      slot.inputs.front().reset();  // loaded again
    }
  } else {
    slot.inputs.clear();
  }
  hand_on(own, slot);
  if (held.stage.is_last() && sums.samples > 0) {
    own.losses.loss += sums.loss;
    own.losses.samples += sums.samples;
    if (held.part == 0) {
      segment_.board->report(fed(own, microbatch) / segment_.lowered->microbatches_per_step,
                             held.replica, sums);
    }
  }
  return slot.samples;
}

// Outputs that a stage of this rank takes become its inputs without a message.
void Worker::Training::hand_on(Lane& own, Slot& slot) const {
  bool sends = false;
  for (int stage = 0; stage < own.held.borders.num_stages() && !own.users.empty(); ++stage) {
    const Lane* other = lane_of_[static_cast<std::size_t>(stage)];
    sends = sends || (!own.held.borders.to(stage).empty() &&
                      (other == nullptr || !runs(*other, slot.microbatch)));
  }
  bool handed = false;
  for (Lane* user : own.users) {
    if (!runs(*user, slot.microbatch)) {
      continue;
    }
    Slot& target = user->slots.at(slot.microbatch);
    const std::vector<int>& outputs = own.held.borders.to(user->held.index);
    const std::vector<int>& inputs = user->held.borders.from(own.held.index);
    target.inputs.resize(user->held.stage.inputs().size());
    for (std::size_t k = 0; k < inputs.size() && slot.samples > 0; ++k) {
      target.inputs[static_cast<std::size_t>(inputs[k])] =
          slot.outputs[static_cast<std::size_t>(outputs[k])];
    }
    handed = true;
  }
  if (handed && !sends) {
    slot.outputs.clear();
  }
}

// The same for gradients.
void Worker::Training::hand_back(Lane& own, Slot& slot) const {
  for (Lane* maker : own.makers) {
    if (!runs(*maker, slot.microbatch)) {
      continue;
    }
    Slot& target = maker->slots.at(slot.microbatch);
    const std::vector<int>& inputs = own.held.borders.from(maker->held.index);
    const std::vector<int>& outputs = maker->held.borders.to(own.held.index);
    for (std::size_t k = 0; k < inputs.size() && slot.samples > 0; ++k) {
      at::Tensor& gradient = slot.input_gradients[static_cast<std::size_t>(inputs[k])];
      if (gradient.defined()) {
        target.gradients.push_back({outputs[k], own.held.index, std::move(gradient)});
      }
    }
    ++slot.num_sent_back;
  }
}

// The weights that a backward reads: under policy blend a mix of its version and the newest.
const WeightViews& Worker::Training::backward_weights(Lane& own, const Action& action) const {
  WeightVersions& versions = own.held.versions;
  const int64_t behind = versions.newest_version() - action.version;
  if (segment_.lowered->policy != "blend" || behind == 0) {
    return versions.read(action.version);
  }
  const double stale = std::exp(-segment_.lowered->blend_lambda * static_cast<double>(behind));
  if (stale == 0) {
    return versions.newest_views();
  }
  if (stale == 1) {
    return versions.read(action.version);
  }
  if (!own.mixed.defined()) {
    own.mixed = at::empty_like(versions.newest());
    own.mixed_views = own.held.stage.views(own.mixed);
  }
  own.mixed.copy_(versions.newest()).mul_(1 - stale).add_(versions.flat(action.version), stale);
  return own.mixed_views;
}

// Brings back what the forward did not keep. Buffers were updated by the forward itself.
void Worker::Training::prepare_backward(Lane& own, Slot& slot, const WeightViews& weights) const {
  if (worker_.setup_.recompute == Recompute::kStage) {
    LossSums known;
    run_forward(own, slot, weights, own.scratch_buffers, {}, known);
    slot.inputs.clear();
  } else if (worker_.setup_.recompute == Recompute::kLayer) {
    slot.stash.context.buffers = own.scratch_buffers;
  }
  if (!own.users.empty()) {
    // Those of this rank's stages came before those by message; they are summed in the order of
    // consumers wherever these run.
    std::stable_sort(
        slot.gradients.begin(), slot.gradients.end(),
        [](const BorderGradient& a, const BorderGradient& b) { return a.consumer < b.consumer; });
  }
}

// Runs B or I on every non-empty microbatch of the action and records it.
template <typename Compute>
void Worker::Training::run_backward(const Action& action, const Compute& compute) {
  announce(action);
  const double start_s = monotonic_s();
  Lane& own = lane(action);
  const WeightViews& weights = backward_weights(own, action);
  int64_t samples = 0;
  for (int64_t m = action.first; m <= action.last; ++m) {
    Slot& slot = own.slots.at(m);
    samples += slot.samples;
    if (slot.samples > 0) {
      prepare_backward(own, slot, weights);
      measure_stash();
      compute(own, slot, weights);
      slot.gradients.clear();
    }
    hand_back(own, slot);
    slot.computed = action.kind != ActionKind::kInputGradient;
    SlotRing::release_when_done(slot, own.held.borders.num_sources());
  }
  finish_compute(action, samples, start_s);
}

// Sums what all stashes of the rank hold, a shared tensor once.
void Worker::Training::measure_stash() {
  if (!worker_.setup_.measures_stash) {
    return;
  }
  std::unordered_map<const void*, int64_t> alive;  // bytes by place
  const auto add = [&alive](const at::Tensor& tensor) {
    if (tensor.defined()) {
      int64_t& bytes = alive[tensor.storage().data()];
      bytes = std::max(bytes, static_cast<int64_t>(tensor.nbytes()));
    }
  };
  for (const std::unique_ptr<Lane>& each : lanes_) {
    each->slots.visit([&](const Slot& slot) {
      add(slot.stash.loss_gradient);
      for (const std::vector<Tensors>* part : {&slot.stash.saved, &slot.stash.kept}) {
        for (const Tensors& tensors : *part) {
          std::for_each(tensors.begin(), tensors.end(), add);
        }
      }
      if (worker_.setup_.recompute == Recompute::kStage) {
        std::for_each(slot.inputs.begin(), slot.inputs.end(), add);
      }
    });
  }
  int64_t sum = 0;
  for (const auto& [place, bytes] : alive) {
    sum += bytes;
  }
  worker_.peak_stash_bytes_ = std::max(worker_.peak_stash_bytes_, sum);
}

// What the rule of a stage is told of an update that applies these steps.
Update Worker::Training::update_of(const Lane& own, int64_t first_step, int64_t last_step) const {
  Update update{.step = segment_.first_step + fed_step(last_step),
                .samples = 0,
                .own_samples = 0,
                .lr = segment_.lr->at(segment_.first_step + fed_step(last_step))};
  const int64_t each = segment_.lowered->microbatches_per_step;
  for (int64_t step = first_step; step <= last_step; ++step) {
    update.samples += static_cast<double>(segment_.feed->step_samples(fed_step(step)));
    for (int64_t m = step * each; m < (step + 1) * each; ++m) {
      if (runs(own, m)) {
        update.own_samples += static_cast<double>(segment_.feed->part_samples(fed(own, m)));
      }
    }
  }
  return update;
}

// Whether the stage's rule is told of gradients layer by layer. On an emulated device a layer ends
// at no time of its own.
bool Worker::Training::announces(const Lane& own) const {
  return own.held.exchange != nullptr && own.held.exchange->traits().overlaps &&
         !worker_.setup_.device;
}

// For the last backward of an update; empty for other ones.
LayerDone Worker::Training::announcer(Lane& own, int64_t microbatch) {
  const Action* reduce = own.reduce_after(listed(microbatch));
  if (reduce == nullptr || !announces(own)) {
    return {};
  }
  const int64_t each = segment_.lowered->microbatches_per_step;
  const int64_t offset = microbatch / each - listed(microbatch) / each;
  own.update = update_of(own, reduce->first / each + offset, reduce->last / each + offset);
  return announcer(own);
}

LayerDone Worker::Training::announcer(Lane& own) {
  return [this, &own](int64_t begin, int64_t end) {
    divide_again(worker_.setup_, own.held, own.update.samples, begin, end);
    own.held.exchange->ready(own.update, tensors_of(own.held), {begin, end}, own.beside);
  };
}

void Worker::Training::begin() {
  for (const std::unique_ptr<Lane>& own : lanes_) {
    if (own->held.exchange != nullptr) {
      own->held.exchange->begin(own->held.versions.newest());
    }
  }
}

void Worker::Training::finish() {
  for (const std::unique_ptr<Lane>& own : lanes_) {
    if (own->held.exchange != nullptr) {
      Transfer transfer;
      own->held.exchange->finish(tensors_of(own->held), optimizer_step(own->held, own->update),
                                 transfer);
    }
  }
}

// The optimizer as a rule may call it, by the learning rate of that update.
OptimizerStep Worker::Training::optimizer_step(HeldStage& held, const Update& update) const {
  return [this, &held, &update](const at::Tensor& current, at::Tensor& target, at::Tensor& gradient,
                                double samples, bool delta_only) {
    const int64_t step = update.step - segment_.first_step;
    if (segment_.observer != nullptr) {
      segment_.observer->before_update(held.index, held.place, step, gradient, samples, current);
    }
    held.optimizer->update(
        current, target, gradient,
        {.samples = samples, .lr = update.lr, .clip = clip_, .delta_only = delta_only});
  };
}

// The update of the replica's own shard. An observer sees all of it.
void Worker::Training::update_shard(Lane& own, const Action& action) {
  HeldStage& held = own.held;
  ShardedState& sharded = *held.sharded;
  own.update = update_of(own, first_step(action), last_step(action));
  at::Tensor gradient = sharded.gradient();
  if (worker_.setup_.divide_twice) {
    gradient.div_(own.update.samples);
  }
  held.versions.buffer_for(action.version);  // the newest's own: nobody reads older weights
  at::Tensor weights = sharded.weights();
  if (segment_.observer != nullptr) {
    segment_.observer->before_update(
        held.index, held.replica, own.update.step - segment_.first_step,
        sharded.group().join(gradient), own.update.samples, sharded.group().join(weights));
  }
  held.optimizer->update(
      weights, weights, gradient,
      {.samples = own.update.samples, .lr = own.update.lr, .clip = clip_, .delta_only = false});
  held.versions.made(action.version);
  if (!held.accumulators.empty()) {
    held.stage.commit(held.accumulators, held.buffers);
  }
  if (segment_.observer != nullptr) {
    segment_.observer->after_update(held.index, held.replica, last_step(action),
                                    sharded.group().join(weights));
  }
}

void Worker::Training::update(Lane& own, const Action& action, Transfer& transfer) {
  HeldStage& held = own.held;
  if (held.sharded != nullptr) {
    update_shard(own, action);
    return;
  }
  const at::Tensor current = held.versions.newest();
  at::Tensor& target = held.versions.buffer_for(action.version);
  if (held.exchange == nullptr) {
    own.update = update_of(own, first_step(action), last_step(action));
  }
  const OptimizerStep optimizer = optimizer_step(held, own.update);
  if (held.exchange == nullptr) {
    divide_again(worker_.setup_, held, own.update.samples, 0, held.gradient.numel());
    optimizer(current, target, held.gradient, own.update.samples, false);
  } else {
    StageTensors tensors{held.gradient, current, target};
    if (own.losses.samples > 0) {
      tensors.loss = own.losses.loss / static_cast<double>(own.losses.samples);
    }
    own.losses = LossSums{};
    held.exchange->step(own.update, tensors, optimizer, transfer);
  }
  held.versions.made(action.version);
  if (!held.accumulators.empty()) {
    held.stage.commit(held.accumulators, held.buffers);
  }
  if (segment_.observer != nullptr) {
    segment_.observer->after_update(held.index, held.place, last_step(action),
                                    held.versions.newest());
  }
}

}  // namespace millrace
