#include "millrace/train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/document.h"
#include "millrace/base/text.h"
#include "millrace/comm/inproc/inproc.h"
#include "millrace/comm/wire.h"
#include "millrace/model/split.h"
#include "millrace/runtime/dealer.h"
#include "millrace/runtime/team.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/split.h"
#include "millrace/schedule/validate.h"

namespace millrace {
namespace {

// Microbatches of an evaluation that run between two joins: long enough to fill the pipeline, short
// enough that a fast first stage does not pile up activations before a slow one.
constexpr int64_t kEvaluationWindow = 16;
constexpr double kPollS = 0.1;
// Who has waited so long for a message is told, and again after as long.
constexpr double kLongWaitS = 10;
// Processes wait so long for each other between segments, while one of them evaluates or writes. A
// process that ends is noticed at once, whatever this is.
constexpr double kPatienceS = 24 * 3600;
// After the last step, until its report is here.
constexpr double kReportS = 30;

// Above those of actions and engines.
constexpr uint8_t kStateMessage = 120;

// Refuses a schedule in which a backward reads other weights than its forward where a layer of that
// stage cannot do that.
void check_backward_weights(const Model& model, const std::vector<std::vector<int>>& stages,
                            const LoweredSchedule& lowered) {
  // A mix is no version; the annotation names but one part of it.
  const bool mixes = lowered.policy == "blend";
  std::vector<std::string> layers(stages.size());  // per stage, one that cannot
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const int l : stages[s]) {
      const Layer& layer = *model.layers[static_cast<std::size_t>(l)];
      if (layer.needs_forward_weights()) {
        layers[s] = layer.name();
      }
    }
  }
  for (const ActionList& actions : lowered.ranks) {
    std::map<std::pair<int, int64_t>, int64_t> read;  // by stage and microbatch
    for (const Action& action : actions) {
      const bool forward = action.kind == ActionKind::kForward;
      if ((!forward && action.kind != ActionKind::kBackward &&
           action.kind != ActionKind::kInputGradient) ||
          layers[static_cast<std::size_t>(action.stage)].empty()) {
        continue;
      }
      for (int64_t m = action.first; m <= action.last; ++m) {
        if (forward) {
          read[{action.stage, m}] = action.version;
        } else if (mixes || read.at({action.stage, m}) != action.version) {
          throw Error(
              ErrorCode::kUnsupported,
              fmt::format("layer \"{}\" can only go back with the weights that its forward "
                          "read (version {}), and this policy gives the backward version "
                          "{}; use policy stash, a schedule with a flush, or a native layer",
                          layers[static_cast<std::size_t>(action.stage)],
                          read.at({action.stage, m}), action.version))
              .at_stage(action.stage)
              .at_action(to_string(action));
        }
      }
    }
  }
}

// Refuses what on-demand dealing cannot do: replicas are whole copies then, each of the same
// microbatches on all stages.
void check_on_demand(const LoweredSchedule& lowered) {
  std::vector<std::vector<std::vector<int64_t>>> blocks;  // by stage and replica
  for (int stage = 0; stage < lowered.num_stages; ++stage) {
    blocks.push_back(microbatches_by_replica(lowered, stage));
  }
  const bool alike = lowered.flush && std::all_of(blocks.begin(), blocks.end(), [&](const auto& b) {
                       return b == blocks.front();
                     });
  const bool even =
      std::all_of(blocks.front().begin(), blocks.front().end(),
                  [&](const auto& block) { return block.size() == blocks.front().front().size(); });
  bool copies = true;  // a rank that holds several stages is the same replica of all of them
  for (std::size_t rank = 0; rank < lowered.rank_stages.size(); ++rank) {
    for (const int stage : lowered.rank_stages[rank]) {
      const int front = lowered.rank_stages[rank].front();
      copies = copies && lowered.replica_of(static_cast<int>(rank), stage) ==
                             lowered.replica_of(static_cast<int>(rank), front);
    }
  }
  if (!alike || !even || !copies) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("deal = \"on-demand\" needs a schedule with a flush and as many "
                            "replicas of every stage, each with microbatches of its own; schedule "
                            "{} here is not of that kind; set deal = \"fixed\", or a plan of one "
                            "stage",
                            lowered.name))
        .at_key("parallel.deal");
  }
}

// zero-3 frees the weights between a forward and its backward.
void check_kept_weights(const Model& model, const Plan& plan) {
  for (const auto& layer : model.layers) {
    if (plan.shard == Shard::kZero3 && layer->needs_forward_weights()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("layer \"{}\" keeps the weights of its forward until its backward, "
                              "and zero-3 is to free them between the two; set shard = \"zero-2\", "
                              "or use a native layer",
                              layer->name()))
          .at_key("parallel.shard");
    }
  }
}

void check_recompute(const Schedule& schedule, const Plan& plan) {
  if (plan.recompute != Recompute::kNothing && !find_policy(schedule.policy).backward_as_forward) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("recompute = \"{}\" computes a forward once more with the weights of its "
                    "backward, and policy {} gives a backward other weights than its "
                    "forward; set recompute = \"none\", or choose policy stash",
                    to_string(plan.recompute), schedule.policy))
        .at_key("parallel.recompute");
  }
}

}  // namespace

std::vector<std::vector<int>> stage_layers(const Plan& plan, const Model& model) {
  std::map<std::string, int> index;
  for (const std::string& name : model.layer_names()) {
    index.emplace(name, static_cast<int>(index.size()));
  }
  std::vector<std::vector<int>> stages;
  for (const PlanStage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& name : stage.layers) {
      const auto found = index.find(name);
      if (found == index.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the plan's layer \"{}\" is none of {}'s", name, model.name));
      }
      layers.push_back(found->second);
    }
    std::sort(layers.begin(), layers.end());
    stages.push_back(std::move(layers));
  }
  return stages;
}

Session::Session(const SessionSetup& setup)
    : setup_(setup),
      emulation_(setup.emulation == nullptr
                     ? nullptr
                     : std::make_unique<Emulation>(*setup.emulation, setup.plan, *setup.model)),
      own_world_(setup.world == nullptr
                     ? std::make_unique<InprocWorld>(
                           setup.plan.workers,
                           emulation_ ? emulation_->timeout_s(setup.timeout_s) : setup.timeout_s)
                     : nullptr),
      world_(setup.world == nullptr ? own_world_.get() : setup.world),
      coordination_(std::make_unique<Coordination>(*world_)),
      communicators_(static_cast<std::size_t>(setup.plan.workers)),
      workers_(static_cast<std::size_t>(setup.plan.workers)) {
  check_plan(setup.plan, setup.model->layer_names(), setup.model->edges());
  schedule_ = make_schedule(setup.plan.schedule, schedule_config(setup.plan), setup.policy);
  check_recompute(schedule_, setup.plan);
  check_kept_weights(*setup.model, setup.plan);
  MILLRACE_CHECK(
      world_->num_ranks() == setup.plan.workers,
      fmt::format("a world of {} ranks for {} workers", world_->num_ranks(), setup.plan.workers));
  std::vector<int> used_ranks;
  for (int rank = 0; rank < setup.plan.workers; ++rank) {
    if (!setup.plan.stages_of_rank(rank).empty()) {
      used_ranks.push_back(rank);
      if (is_here(rank)) {
        ranks_.push_back(rank);
      }
    }
  }
  const std::vector<std::vector<int>> stages = stage_layers(setup.plan, *setup.model);
  links_ = stage_links(setup.plan, setup.model->edges());
  validate(schedule_, plan_of_part(setup.plan, 0), links_);  // holds of each part alike
  if (setup.plan.split_parts > 1 && setup.on_demand) {
    throw Error(ErrorCode::kUnsupported,
                "deal = \"on-demand\" deals samples to whole replicas, and here layers are split; "
                "set deal = \"fixed\", or split = \"none\"")
        .at_key("parallel.deal");
  }
  std::vector<int> stage_of_layer(setup.model->layers.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const int layer : stages[s]) {
      stage_of_layer[static_cast<std::size_t>(layer)] = static_cast<int>(s);
    }
  }
  world_->exchange("", kPatienceS);  // clocks of several machines start as one
  const double origin_s = monotonic_s();
  run([&](int rank) {
    WorkerSetup worker;
    worker.model = setup_.model;
    for (const int stage : setup_.plan.stages_of_rank(rank)) {
      StageSetup held;
      held.stage = stage;
      held.layers = stages[static_cast<std::size_t>(stage)];
      const std::vector<int>& ranks = setup_.plan.stages[static_cast<std::size_t>(stage)].ranks;
      const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
      const int parts = setup_.plan.split_parts;
      held.replica = static_cast<int>(place) / parts;
      held.part = static_cast<int>(place) % parts;
      held.replicas =
          plan_of_part(setup_.plan, held.part).stages[static_cast<std::size_t>(stage)].ranks;
      if (parts > 1) {
        held.parts.assign(ranks.begin() + place - held.part,
                          ranks.begin() + place - held.part + parts);
      }
      std::sort(held.replicas.begin(), held.replicas.end());
      held.shard = setup_.plan.shard;
      worker.stages.push_back(std::move(held));
    }
    worker.stage_of_layer = stage_of_layer;
    worker.recompute = setup_.plan.recompute;
    worker.measures_stash = setup_.measures_stash;
    if (setup_.before_action) {
      worker.before_action = [this, rank](const Action& action) {
        setup_.before_action(rank, action);
      };
    }
    worker.used_ranks = used_ranks;
    worker.rule = setup_.plan.rule;
    worker.rule_options = setup_.plan.rule_options;
    for (int other = 0; other < setup_.plan.workers; ++other) {
      worker.node_of_rank.push_back(world_->process_of(other));
    }
    worker.train = setup_.train;
    worker.seed = setup_.train.seed;
    worker.dtype = setup_.model->dtype();
    worker.trace_origin_s = origin_s;
    worker.divide_twice = setup_.divide_twice;
    const auto r = static_cast<std::size_t>(rank);
    communicators_[r] = world_->communicator(rank);
    if (emulation_) {
      communicators_[r] = emulation_->shape(std::move(communicators_[r]));
      worker.device = emulation_->device(rank);
    }
    workers_[r] = std::make_unique<Worker>(worker, *communicators_[r]);
  });
}

Session::~Session() = default;

void Session::run(const std::function<void(int)>& work) {
  run_ranks(
      ranks_,
      [this](const Error& cause) {
        world_->abort(cause);
        if (emulation_) {
          emulation_->abort(cause);
        }
      },
      work);
}

int Session::num_replicas(int stage) const {
  return static_cast<int>(setup_.plan.stages.at(static_cast<std::size_t>(stage)).ranks.size()) /
         setup_.plan.split_parts;
}

int Session::rank_of(int stage, int replica, int part) const {
  return setup_.plan.stages.at(static_cast<std::size_t>(stage))
      .ranks.at(static_cast<std::size_t>(replica * setup_.plan.split_parts + part));
}

bool Session::is_here(int rank) const { return world_->process_of(rank) == world_->process(); }

bool Session::agree(bool own) {
  bool any = false;
  for (const std::string& each : world_->exchange(own ? "yes" : "no", kPatienceS)) {
    any = any || each == "yes";
  }
  return any;
}

HeldStage& Session::held(int stage, int replica, int part) {
  return workers_[static_cast<std::size_t>(rank_of(stage, replica, part))]->held(stage);
}

const Worker& Session::worker(int rank) const {
  return *workers_.at(static_cast<std::size_t>(rank));
}

int64_t Session::train(const Dataset& dataset, const SampleOrder& order, int64_t epoch,
                       int64_t first_step, int64_t num_steps, const StepHooks& hooks,
                       UpdateObserver* observer) {
  if (num_steps <= 0) {
    return 0;
  }
  const Plan& plan = setup_.plan;
  const bool clips = setup_.train.clip_norm.has_value();
  const Schedule& schedule = schedule_;
  LoweredSchedule lowered = lower(schedule, plan, schedule.flush ? 1 : num_steps, links_, clips);
  lowered.blend_lambda = setup_.blend_lambda;
  check_backward_weights(*setup_.model, stage_layers(plan, *setup_.model), lowered);
  const std::unique_ptr<Dataset> changed = dataset.in_epoch(setup_.train.seed, epoch);
  const Feed feed(changed ? *changed : dataset, order.epoch(epoch), setup_.train.batch, first_step,
                  schedule.num_microbatches, setup_.model->dtype());
  const LrSchedule lr(setup_.train, order.steps_per_epoch());
  StepGate gate(lowered.round_steps, [this] { return world_->first_cause().has_value(); });
  StepBoard board([&feed](int64_t step) { return feed.step_samples(step); },
                  num_replicas(plan.num_stages() - 1), clips);
  TrainSegment segment;
  segment.lowered = &lowered;
  segment.feed = &feed;
  segment.num_steps = num_steps;
  segment.lr = &lr;
  segment.first_step = epoch * order.steps_per_epoch() + first_step;
  segment.gate = &gate;
  std::optional<Dealer> dealer;
  if (setup_.on_demand) {
    check_on_demand(lowered);
    dealer.emplace(num_steps, static_cast<int>(plan.stages.front().ranks.size()));
    segment.dealer = &*dealer;
  }
  segment.observer = observer;
  coordination_->begin(gate, board);
  segment.board = &coordination_->reporter();

  segment_starts_.push_back(steps_done_);
  int64_t steps_done = 0;
  std::exception_ptr failure;
  std::thread team([&] {
    try {
      steps_done = run_segment(segment, board);
    } catch (...) {
      failure = std::current_exception();
    }
    board.close();
  });
  const auto serve = [&] {
    while (true) {
      const bool closed = board.closed();
      const std::optional<StepSums> step = board.next(kPollS);
      if (step && step->gradient_norm && hooks.on_norm) {
        hooks.on_norm(step->step, *step->gradient_norm);
      }
      if (step && hooks.on_step) {
        hooks.on_step(step->step, step->sums);
      }
      if (!step && closed) {
        break;
      }
      if (hooks.stop_requested && hooks.stop_requested()) {
        coordination_->request_stop();
      }
      if (hooks.on_alive) {
        hooks.on_alive(gate.furthest());
      }
      tell_waits(hooks);
    }
  };
  std::exception_ptr hook_failure;
  try {
    serve();
  } catch (...) {
    // A listener failed (a full disk, say): the ranks stop at the next step, then the failure goes
    // on.
    hook_failure = std::current_exception();
    coordination_->request_stop();
  }
  team.join();
  coordination_->end();
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (hook_failure) {
    std::rethrow_exception(hook_failure);
  }
  steps_done_ += steps_done;
  return steps_done;
}

// The ranks' part of train(): their steps, which all processes then know, and in the leading one
// every report.
int64_t Session::run_segment(const TrainSegment& segment, StepBoard& board) {
  std::atomic<int64_t> own_steps{0};
  run([&](int rank) {
    const int64_t done = workers_[static_cast<std::size_t>(rank)]->train(segment);
    if (rank == ranks_.front()) {
      own_steps = done;
    }
  });
  if (segment.dealer != nullptr) {
    own_steps = segment.gate->furthest() + 1;  // replicas do different numbers of their own
  }
  int64_t steps = 0;
  // A process all of whose ranks are idle knows of none.
  for (const std::string& each : world_->exchange(std::to_string(own_steps), kPatienceS)) {
    steps = std::max<int64_t>(steps, std::stoll(each));
  }
  if (world_->leads() && !board.wait_complete(steps, kReportS)) {
    throw Error(ErrorCode::kTimeout,
                fmt::format("{} steps are done, and the losses of some were not reported within "
                            "{:g} s",
                            steps, kReportS));
  }
  return steps;
}

void Session::tell_waits(const StepHooks& hooks) {
  if (!hooks.on_wait || monotonic_s() - waits_told_s_ < kLongWaitS) {
    return;
  }
  for (const RankWait& wait : world_->waits()) {
    if (wait.waited_s < kLongWaitS) {
      continue;
    }
    waits_told_s_ = monotonic_s();
    hooks.on_wait(fmt::format(
        "rank {} ({}) has waited {:.0f} s for {} from rank {}{}", wait.rank,
        describe_stages(setup_.plan.stages_of_rank(wait.rank)), wait.waited_s, to_string(wait.tag),
        wait.from,
        wait.last_heard_s < 0
            ? ""
            : fmt::format(", whose process was last heard {:.0f} s ago", wait.last_heard_s)));
  }
}

// What replicas agree on where their weights differ, for the stages that ranks of this process
// hold.
std::map<std::pair<int, int>, at::Tensor> Session::settle() {
  std::map<std::pair<int, int>, at::Tensor> settled;  // by rank and stage
  std::mutex mutex;
  run([&](int rank) {
    for (const int stage : setup_.plan.stages_of_rank(rank)) {
      at::Tensor weights = workers_[static_cast<std::size_t>(rank)]->held(stage).settled();
      if (weights.defined()) {
        const std::lock_guard<std::mutex> lock(mutex);
        settled[{rank, stage}] = std::move(weights);
      }
    }
  });
  return settled;
}

// While it lives the ranks' newest weights are those that replicas agree on.
class Session::SettledWeights {
 public:
  explicit SettledWeights(Session& session) : session_(session), weights_(session.settle()) {
    swap();
  }
  ~SettledWeights() { swap(); }
  SettledWeights(const SettledWeights&) = delete;
  SettledWeights& operator=(const SettledWeights&) = delete;

 private:
  void swap() {
    for (auto& [key, weights] : weights_) {
      at::Tensor& newest = session_.workers_[static_cast<std::size_t>(key.first)]
                               ->held(key.second)
                               .versions.newest();
      const at::Tensor own = newest.clone();
      newest.copy_(weights);
      weights = own;
    }
  }

  Session& session_;
  std::map<std::pair<int, int>, at::Tensor> weights_;
};

// While it lives the weights of stages that replicas hold in shards between steps are whole.
class Session::WholeWeights {
 public:
  explicit WholeWeights(Session& session) : session_(session) {
    session_.run(
        [this](int rank) { visit_freed(rank, [](ShardedState& sharded) { sharded.gather(); }); });
  }
  ~WholeWeights() {
    for (const int rank : session_.ranks_) {
      visit_freed(rank, [](ShardedState& sharded) { sharded.free(); });
    }
  }
  WholeWeights(const WholeWeights&) = delete;
  WholeWeights& operator=(const WholeWeights&) = delete;

 private:
  template <typename Visit>
  void visit_freed(int rank, const Visit& visit) {
    for (const int stage : session_.setup_.plan.stages_of_rank(rank)) {
      HeldStage& held = session_.workers_[static_cast<std::size_t>(rank)]->held(stage);
      if (held.sharded != nullptr && held.sharded->frees()) {
        visit(*held.sharded);
      }
    }
  }

  Session& session_;
};

LossSums Session::evaluate(const Dataset& dataset, int64_t batch,
                           const std::function<bool()>& stop_requested) {
  average_buffers();
  const WholeWeights whole(*this);
  const SettledWeights settled(*this);
  LossSums total;
  std::vector<int64_t> order(static_cast<std::size_t>(dataset.size()));
  std::iota(order.begin(), order.end(), 0);
  const int64_t num_batches = (dataset.size() + batch - 1) / batch;
  const int64_t window = kEvaluationWindow * setup_.plan.max_replicas();
  for (int64_t first = 0; first < num_batches; first += window) {
    if (stop_requested && stop_requested()) {
      break;
    }
    const int64_t count = std::min(window, num_batches - first);
    const LoweredSchedule lowered = lower_evaluation(setup_.plan, count, links_);
    const Feed feed(dataset, order, batch, first, 1, setup_.model->dtype());
    std::vector<LossSums> sums(workers_.size());
    run([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      sums[r] = workers_[r]->evaluate(lowered, feed);
    });
    for (const LossSums& part : sums) {
      total.loss += part.loss;
      total.correct += part.correct;
      total.samples += part.samples;
    }
  }
  if (!world_->spans_processes()) {
    return total;
  }
  LossSums all;
  const std::string own = fmt::format("{:a} {} {}", total.loss, total.correct, total.samples);
  for (const std::string& text : world_->exchange(own, kPatienceS)) {
    const std::vector<std::string> parts = split(text, ' ');
    all.loss += std::strtod(parts.at(0).c_str(), nullptr);
    all.correct += std::stoll(parts.at(1));
    all.samples += std::stoll(parts.at(2));
  }
  return all;
}

namespace {

const std::vector<RowRange> kWhole;

// Every named tensor of a stage: per parameter its weights, then what the optimizer keeps for it,
// with the rows of the whole that it is. Tensors that are no parameters (a layer's running
// statistics) join here.
template <typename Visit>
void visit_tensors(const HeldStage& held, const ShardedState::Whole& whole, const Visit& visit) {
  const WeightViews weights = held.stage.views(whole.weights);
  std::vector<WeightViews> states;
  for (const OptimizerBuffer& buffer : whole.state) {
    states.push_back(held.stage.views(buffer.tensor));
  }
  // Slots come layer by layer in stage order, like the views.
  std::size_t slot = 0;
  const std::vector<ParameterSlot>& slots = held.stage.slots();
  for (std::size_t l = 0; l < weights.size(); ++l) {
    for (std::size_t p = 0; p < weights[l].size(); ++p, ++slot) {
      const std::string& layer = slots[slot].layer;
      const std::string name = layer + "." + slots[slot].parameter;
      const std::vector<RowRange>& rows = slots[slot].rows;
      visit(NamedTensor{name, layer, weights[l][p]}, rows);
      for (std::size_t i = 0; i < states.size(); ++i) {
        visit(NamedTensor{name + "/" + whole.state[i].name, layer, states[i][l][p]}, rows);
      }
      if (whole.updates.defined()) {
        visit(NamedTensor{name + "/updates", layer,
                          whole.updates.select(0, static_cast<int64_t>(slot))},
              kWhole);
      }
    }
  }
}

// What a stage has that is not sharded.
ShardedState::Whole all_of(const HeldStage& held) {
  return {held.versions.newest(), held.optimizer->state(), held.optimizer->updates()};
}

// Calls `take` with the shape and dtype of the tensor that visit_tensors would name `name`, if
// there is one, and with what puts this replica's part of a value in place.
template <typename Take>
void visit_shards(HeldStage& held, const std::string& name, const Take& take) {
  ShardedState& sharded = *held.sharded;
  const std::vector<ParameterSlot>& slots = held.stage.slots();
  const at::ScalarType dtype = sharded.weights().scalar_type();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const std::string parameter = slots[slot].layer + "." + slots[slot].parameter;
    if (name == parameter) {
      take(slots[slot].shape, dtype,
           [&](const at::Tensor& value) { sharded.load_weights(slot, value); });
    }
    for (const OptimizerBuffer& buffer : held.optimizer->state()) {
      if (name == parameter + "/" + buffer.name) {
        take(slots[slot].shape, dtype,
             [&](const at::Tensor& value) { sharded.load_state(slot, value, buffer.tensor); });
      }
    }
    if (held.optimizer->updates().defined() && name == parameter + "/updates") {
      take(at::IntArrayRef{}, at::kDouble,
           [&](const at::Tensor& value) { sharded.load_updates(slot, *value.data_ptr<double>()); });
    }
  }
}

template <typename Visit>
void visit_buffers(HeldStage& held, const Visit& visit) {
  const std::vector<BufferSlot>& slots = held.stage.buffer_slots();
  for (std::size_t b = 0; b < slots.size(); ++b) {
    visit(NamedTensor{slots[b].layer + "." + slots[b].buffer, slots[b].layer, held.buffers[b]},
          kWhole);
  }
}

}  // namespace

// Replicas see different samples, so their running statistics differ. Each weighs by what it saw
// since the last time; one that saw nothing since, by nothing.
void Session::average_buffers() {
  run([this](int rank) {
    for (const int stage : setup_.plan.stages_of_rank(rank)) {
      workers_[static_cast<std::size_t>(rank)]->held(stage).average_buffers();
    }
  });
}

std::vector<NamedTensor> Session::state() {
  average_buffers();
  const std::map<std::pair<int, int>, at::Tensor> settled = settle();
  std::map<int, ShardedState::Whole> whole = collect_shards();
  const int num_stages = setup_.plan.num_stages();
  const int num_parts = setup_.plan.split_parts;
  // What each stage has, as its replica 0 holds it: first the weights of all, then the buffers. Of
  // parts but the first only what they have alone.
  std::vector<std::vector<NamedTensor>> parts(static_cast<std::size_t>(2 * num_stages * num_parts));
  std::vector<std::string> lines;
  for (int p = 0; p < 2 * num_stages * num_parts; ++p) {
    const int part = p % num_parts;
    const int stage = p / num_parts % num_stages;
    const int rank = rank_of(stage, 0, part);
    if (!is_here(rank)) {
      continue;
    }
    const auto add = [&](NamedTensor tensor, const std::vector<RowRange>& rows) {
      if (part == 0 || !rows.empty()) {
        lines.push_back(fmt::format("{}\t{}\t{}", p, tensor.name, tensor.layer));
        parts[static_cast<std::size_t>(p)].push_back(std::move(tensor));
      }
    };
    HeldStage& own = held(stage, 0, part);
    if (p < num_stages * num_parts) {
      const auto found = settled.find({rank, stage});
      const auto collected = whole.find(stage);
      ShardedState::Whole all =
          collected == whole.end() ? all_of(own) : std::move(collected->second);
      if (found != settled.end()) {
        all.weights = found->second;
      }
      visit_tensors(own, all, add);
    } else {
      visit_buffers(own, add);
    }
  }
  if (world_->spans_processes()) {
    gather_state(parts, join(lines, "\n"));
  }
  if (num_parts > 1 && world_->leads()) {
    join_parts(parts);
  }
  std::vector<NamedTensor> tensors;
  for (std::vector<NamedTensor>& part : parts) {
    std::move(part.begin(), part.end(), std::back_inserter(tensors));
  }
  return tensors;
}

// Sharded stages whose replica 0 is here, by stage.
std::map<int, ShardedState::Whole> Session::collect_shards() {
  std::map<int, ShardedState::Whole> whole;
  std::mutex mutex;
  run([&](int rank) {
    for (const int stage : setup_.plan.stages_of_rank(rank)) {
      HeldStage& held = workers_[static_cast<std::size_t>(rank)]->held(stage);
      if (held.sharded == nullptr) {
        continue;
      }
      const std::vector<int>& ranks = setup_.plan.stages[static_cast<std::size_t>(stage)].ranks;
      const auto root = std::count_if(ranks.begin(), ranks.end(),
                                      [&](int other) { return other < ranks.front(); });
      ShardedState::Whole own = held.sharded->collect(static_cast<int>(root));
      if (held.replica == 0) {
        const std::lock_guard<std::mutex> lock(mutex);
        whole[stage] = std::move(own);
      }
    }
  });
  return whole;
}

// Leaves each stage's tensors whole, in the list of its part 0. `parts`: as state() has them, of
// all processes.
void Session::join_parts(std::vector<std::vector<NamedTensor>>& parts) const {
  const int num_parts = setup_.plan.split_parts;
  const std::vector<std::vector<int>> layers = stage_layers(setup_.plan, *setup_.model);
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    const std::size_t first = stage * static_cast<std::size_t>(num_parts);
    std::map<std::string, std::vector<PartialTensor>> pieces;  // by name, in order of parts
    for (int part = 0; part < num_parts; ++part) {
      // Which rows another process's part has, the model says.
      const Stage own(*setup_.model, layers[stage], Ties::kRefused, {part, num_parts});
      std::map<std::string, std::vector<RowRange>> rows;
      for (const ParameterSlot& slot : own.slots()) {
        rows[slot.layer + "." + slot.parameter] = slot.rows;
      }
      for (const NamedTensor& each : parts[first + static_cast<std::size_t>(part)]) {
        const std::vector<RowRange>& of = rows.at(each.name.substr(0, each.name.find('/')));
        if (!of.empty() && each.tensor.dim() > 0) {
          pieces[each.name].push_back({each.tensor, of});
        }
      }
    }
    for (NamedTensor& each : parts[first]) {
      const auto found = pieces.find(each.name);
      if (found != pieces.end()) {
        each.tensor = joined(found->second);
      }
    }
    for (int part = 1; part < num_parts; ++part) {
      parts[first + static_cast<std::size_t>(part)].clear();
    }
  }
}

// Brings the other processes' tensors into the leading one's `parts`. `names`: of this process's, a
// line each.
void Session::gather_state(std::vector<std::vector<NamedTensor>>& parts, const std::string& names) {
  const std::vector<std::string> all = world_->exchange(names, kPatienceS);
  const std::unique_ptr<Communicator> own = world_->communicator(world_->local_ranks().front());
  if (!world_->leads()) {
    int64_t number = 0;
    for (const std::vector<NamedTensor>& part : parts) {
      for (const NamedTensor& tensor : part) {
        // A copy: training goes on before it has left.
        own->send(0, {kStateMessage, 0, number++}, tensor.tensor.clone());
      }
    }
    return;
  }
  for (int process = 1; process < world_->num_processes(); ++process) {
    int from = 0;
    while (world_->process_of(from) != process) {
      ++from;
    }
    int64_t number = 0;
    for (const std::string& line : split(all[static_cast<std::size_t>(process)], '\n')) {
      const std::vector<std::string> words = split(line, '\t');
      if (words.size() == 3) {
        parts.at(static_cast<std::size_t>(std::stoi(words[0])))
            .push_back({words[1], words[2],
                        own->receive(from, {kStateMessage, 0, number++}, nullptr, nullptr)});
      }
    }
  }
}

bool Session::load(const std::string& name, const at::Tensor& value) {
  bool found = false;
  const auto check = [&name](const at::Tensor& given, at::IntArrayRef shape, at::ScalarType dtype) {
    if (!given.sizes().equals(shape) || given.scalar_type() != dtype) {
      throw Error(ErrorCode::kBadFile,
                  "tensor " + name + " has another shape or dtype than this model's");
    }
  };
  const auto take = [&](at::IntArrayRef shape, at::ScalarType dtype, const auto& put) {
    check(value, shape, dtype);
    put(value);
    found = true;
  };
  const auto copy = [&](const NamedTensor& tensor, const std::vector<RowRange>& rows) {
    if (tensor.name == name) {
      const at::Tensor own = rows_of(value, rows);
      check(own, tensor.tensor.sizes(), tensor.tensor.scalar_type());
      tensor.tensor.copy_(own);
      found = true;
    }
  };
  for (int stage = 0; stage < setup_.plan.num_stages(); ++stage) {
    for (int replica = 0; replica < num_replicas(stage); ++replica) {
      for (int part = 0; part < setup_.plan.split_parts; ++part) {
        if (!is_here(rank_of(stage, replica, part))) {
          continue;
        }
        HeldStage& own = held(stage, replica, part);
        if (own.sharded != nullptr) {
          visit_shards(own, name, take);
        } else {
          visit_tensors(own, all_of(own), copy);
        }
        visit_buffers(own, copy);
      }
    }
  }
  return found;
}

Trace Session::trace() const {
  std::vector<const Recorder*> recorders;
  for (const int rank : ranks_) {
    recorders.push_back(&workers_[static_cast<std::size_t>(rank)]->recorder());
  }
  Trace trace = join_traces(recorders, segment_starts_);
  for (RankTrace& rank : trace.ranks) {
    rank.process = world_->process();
    rank.host = own_host_name();
  }
  if (world_->spans_processes()) {
    std::vector<Trace> parts;
    for (const std::string& text : world_->exchange(to_json(to_value(trace), -1), kPatienceS)) {
      parts.push_back(trace_from(parse_json(text, "trace")));
    }
    trace = merge_traces(parts);
  }
  if (emulation_) {
    emulation_->unscale(trace);
  }
  return trace;
}

std::optional<Trace> Session::first_steps() const {
  Trace trace;
  trace.num_steps = 1;
  for (const int rank : ranks_) {
    const std::optional<RankSteps> steps =
        workers_[static_cast<std::size_t>(rank)]->recorder().first_steps();
    if (!steps) {
      return std::nullopt;
    }
    trace.ranks.push_back(steps->times);
    if (!steps->times.stages.empty() && steps->times.stages.front() == 0) {
      trace.step_s = std::max(trace.step_s, steps->step_s(segment_starts_));
    }
  }
  if (emulation_) {
    emulation_->unscale(trace);
  }
  return trace;
}

std::optional<Trace> Session::all_first_steps() const {
  std::optional<Trace> own = first_steps();
  if (!world_->spans_processes()) {
    return own;
  }
  Trace all;
  all.num_steps = 1;
  bool known = true;
  for (const std::string& text :
       world_->exchange(own ? to_json(to_value(*own), -1) : "", kPatienceS)) {
    known = known && !text.empty();
    if (known) {
      const Trace part = trace_from(parse_json(text, "first steps"));
      all.ranks.insert(all.ranks.end(), part.ranks.begin(), part.ranks.end());
      all.step_s = std::max(all.step_s, part.step_s);
    }
  }
  return known ? std::optional<Trace>(std::move(all)) : std::nullopt;
}

}  // namespace millrace
