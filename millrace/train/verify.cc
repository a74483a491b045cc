#include "millrace/train/verify.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "millrace/core/lr_schedule.h"
#include "millrace/model/split.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/split.h"
#include "millrace/train/internal/comparison.h"
#include "millrace/train/internal/recorded_run.h"
#include "millrace/train/oracle.h"
#include "millrace/train/replay_oracle.h"
#include "millrace/train/rule_oracle.h"
#include "millrace/train/session.h"

namespace millrace {
namespace {

using internal::Comparison;
using internal::RecordedRun;
using internal::relative_difference;

// Equal sums in another order differ in the last bits only; DESIGN's bound for float64.
constexpr double kFlushTolerance = 1e-9;

int weighted_layers(const Model& model, const std::vector<int>& layers) {
  int count = 0;
  for (const int l : layers) {
    count += model.layers[static_cast<std::size_t>(l)]->parameters().empty() ? 0 : 1;
  }
  return count;
}

// Backward weights matter only where a gradient passes through one layer's weights to another
// layer's: a stage before the last that holds at least two layers with weights.
bool stash_matters(const Model& model, const Plan& plan) {
  const std::vector<std::vector<int>> stages = stage_layers(plan, model);
  for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
    if (weighted_layers(model, stages[s]) >= 2) {
      return true;
    }
  }
  return false;
}

// Moves the first cut back until stage 0 holds two layers with weights, every later stage keeping
// at least one layer. False when the model is too short.
bool recut_so_that_stash_matters(const Model& model, Plan& plan) {
  const std::vector<std::string> names = model.layer_names();
  const auto num_layers = static_cast<int>(names.size());
  const int num_stages = plan.num_stages();
  std::vector<int> first_layers = {0};
  while (static_cast<int>(first_layers.size()) < num_layers &&
         weighted_layers(model, first_layers) < 2) {
    first_layers.push_back(static_cast<int>(first_layers.size()));
  }
  const auto cut = static_cast<int>(first_layers.size());
  if (num_layers - cut < num_stages - 1) {
    return false;
  }
  const std::vector<int64_t> sizes = split_evenly(num_layers - cut, num_stages - 1);
  int next = 0;
  for (int s = 0; s < num_stages; ++s) {
    const int size = s == 0 ? cut : static_cast<int>(sizes[static_cast<std::size_t>(s - 1)]);
    plan.stages[static_cast<std::size_t>(s)].layers.assign(names.begin() + next,
                                                           names.begin() + next + size);
    next += size;
  }
  return true;
}

class Verification {
 public:
  Verification(Job job, const VerifyOptions& options)
      : job_(std::move(job)),
        options_(options),
        order_(job_.data.train->size(), job_.config.train.batch, job_.config.train.seed),
        changed_(job_.data.train->in_epoch(job_.config.train.seed, 0)) {}

  VerifyResult run() {
    const Schedule schedule =
        make_schedule(job_.plan.schedule, schedule_config(job_.plan), job_.config.parallel.policy);
    apply_fault(schedule);
    part_plan_ = plan_of_part(job_.plan, 0);
    check_rule(schedule);
    const int64_t steps_per_epoch = order_.steps_per_epoch();
    result_.steps = std::min(options_.steps, steps_per_epoch);
    first_step_ = steps_per_epoch - result_.steps;
    if (has_own_law()) {
      rule_oracle_.emplace(job_, schedule, order_, first_step_, result_.steps);
    }
    train();
    // Compared on a thread of its own, so that the caller's number of intra-op threads stays as it
    // is.
    std::thread([&] {
      at::set_num_threads(1);
      if (rule_oracle_) {
        compare_by_rule();
      } else if (schedule.flush) {
        compare_whole_batch(schedule.num_microbatches);
      } else {
        compare_delayed(schedule);
      }
    }).join();
    result_.equal = !result_.first_difference;
    return std::move(result_);
  }

 private:
  // Whether replicas exchange anything but sums of gradients.
  bool has_own_law() const { return job_.plan.rule != "bsp" && job_.plan.max_replicas() > 1; }
  bool is_split() const { return job_.plan.split_parts > 1; }

  void check_rule(const Schedule& schedule) const {
    if (job_.config.parallel.deal == "on-demand") {
      throw Error(ErrorCode::kUnsupported,
                  "verify compares with samples dealt as the plan says, and deal = \"on-demand\" "
                  "deals them to whoever asks first; set deal = \"fixed\"")
          .at_key("parallel.deal");
    }
    if (has_own_law() && is_split()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("verify knows split layers under rule bsp, and rule {} has an oracle "
                              "of its own that knows none; set rule = \"bsp\", or split = \"none\"",
                              job_.plan.rule))
          .at_key("parallel.rule");
    }
    if (has_own_law() && !schedule.flush) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("verify knows rule {} under schedules with a flush, and {} has none; "
                              "set schedule = \"1f1b\", or rule = \"bsp\"",
                              job_.plan.rule, schedule.name))
          .at_key("parallel.rule");
    }
  }

  void apply_fault(const Schedule& schedule) {
    policy_ = job_.config.parallel.policy;
    if (options_.fault == Break::kStash) {
      if (schedule.policy != "stash" || job_.plan.num_stages() < 2) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "--break stash needs weight stashing to break: schedule \"pipedream\" with at least "
            "two stages; this run has schedule \"" +
                schedule.name + "\" with " + std::to_string(job_.plan.num_stages()) +
                " stage(s) and policy " + schedule.policy);
      }
      if (!stash_matters(job_.model, job_.plan)) {
        const bool recut = !job_.config.parallel.plan_is_file() &&
                           recut_so_that_stash_matters(job_.model, job_.plan);
        if (!recut) {
          throw Error(
              ErrorCode::kInvalidArgument,
              "--break stash cannot show here: no stage before the last holds two layers with "
              "weights, so no gradient depends on the backward's weights; use a plan whose "
              "first stage does");
        }
        result_.notes.push_back(
            "the plan's stages before the last hold one layer with weights each, where stashing "
            "cannot matter; "
            "verified with " +
            describe(job_.plan) + " instead");
      }
      policy_ = "latest";
    }
    if (options_.fault == Break::kScale && job_.config.train.batch == 1) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "--break scale divides gradients by the batch once more, which changes nothing for "
          "batch = 1; use a larger batch");
    }
  }

  // The first epoch's.
  const Dataset& trained_data() const { return changed_ ? *changed_ : *job_.data.train; }

  void train() {
    Plan plan = job_.plan;
    plan.rule_options = options_.run_rule_options.value_or(plan.rule_options);
    Session session({.model = &job_.model,
                     .plan = std::move(plan),
                     .policy = policy_,
                     .blend_lambda = job_.config.parallel.blend_lambda,
                     .train = job_.config.train,
                     .timeout_s = job_.config.parallel.timeout_s,
                     .divide_twice = options_.fault == Break::kScale,
                     .emulation = job_.emulation_or_null(),
                     .measures_stash = true});
    StepHooks hooks;
    hooks.on_step = [this](int64_t /*step*/, const LossSums& sums) { losses_.push_back(sums); };
    const int64_t done =
        session.train(*job_.data.train, order_, 0, first_step_, result_.steps, hooks, &recording_);
    MILLRACE_CHECK(done == result_.steps, "the run did fewer steps than asked");
    note_memory(session);
    if (rule_oracle_) {
      rule_oracle_->record(session, recording_);
      return;
    }
    // Stage objects die with the session; what is needed of them is copied per parameter now.
    for (int s = 0; s < part_plan_.num_stages(); ++s) {
      const std::size_t replicas = part_plan_.stages[static_cast<std::size_t>(s)].ranks.size();
      slots_.push_back(session.held(s).stage.slots());
      for (int replica = 0; replica < static_cast<int>(replicas); ++replica) {
        record_replica(session, s, replica);
      }
    }
    // Step by step, stages in order, replica 0 first.
    std::stable_sort(updates_.begin(), updates_.end(),
                     [](const RunUpdate& a, const RunUpdate& b) { return a.step < b.step; });
  }

  void note_memory(const Session& session) {
    for (int rank = 0; rank < job_.plan.workers; ++rank) {
      if (!job_.plan.stages_of_rank(rank).empty()) {
        VerifiedMemory memory{rank, session.worker(rank).peak_memory(),
                              job_.predicted.ranks.at(static_cast<std::size_t>(rank)).memory};
        memory.measured.stash_bytes = session.worker(rank).peak_stash_bytes();
        memory.predicted.border_bytes = 0;
        result_.memory.push_back(memory);
      }
    }
  }

  // The updates of one replica, its parts' parameters joined.
  void record_replica(Session& session, int stage, int replica) {
    const int parts = job_.plan.split_parts;
    const std::size_t num_calls = recording_.calls(stage, replica * parts).size();
    for (std::size_t call = 0; call < num_calls; ++call) {
      std::vector<std::vector<at::Tensor>> gradients;
      std::vector<std::vector<at::Tensor>> before;
      std::vector<std::vector<at::Tensor>> after;
      std::vector<const Stage*> stages;
      int64_t step = 0;
      for (int part = 0; part < parts; ++part) {
        const int place = replica * parts + part;
        const RecordedRun::OptimizerCall& own = recording_.calls(stage, place).at(call);
        stages.push_back(&session.held(stage, replica, part).stage);
        step = own.step;
        gradients.push_back(parameters(*stages.back(), own.mean_gradient));
        before.push_back(parameters(*stages.back(), own.before));
        after.push_back(parameters(*stages.back(), recording_.after(stage, place).at(own.step)));
      }
      updates_.push_back({step, stage, replica, whole(stages, gradients, step, "gradient of "),
                          whole(stages, before, step, "weights before: "),
                          whole(stages, after, step, "weights after: ")});
    }
  }

  // Each parameter as all parts have it together. Layers that are not split must be equal on all.
  std::vector<at::Tensor> whole(const std::vector<const Stage*>& stages,
                                const std::vector<std::vector<at::Tensor>>& of_parts, int64_t step,
                                const std::string& what) {
    std::vector<at::Tensor> all = of_parts.front();
    for (std::size_t p = 0; p < all.size() && stages.size() > 1; ++p) {
      std::vector<PartialTensor> pieces;
      for (std::size_t part = 0; part < stages.size(); ++part) {
        const ParameterSlot& slot = stages[part]->slots()[p];
        if (!slot.rows.empty()) {
          pieces.push_back({of_parts[part][p], slot.rows});
        } else if (part > 0) {
          unlike_parts_.push_back(
              {step, slot.layer,
               fmt::format("part {}'s {}{} against part 0's", part, what, slot.parameter),
               relative_difference(of_parts[part][p], all[p])});
        }
      }
      if (!pieces.empty()) {
        all[p] = joined(pieces);
      }
    }
    return all;
  }

  // What one update of one replica read and made, per parameter in the order of the stage's slots.
  struct RunUpdate {
    int64_t step;
    int stage;
    int replica;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> before;
    std::vector<at::Tensor> after;
  };

  static std::vector<at::Tensor> parameters(const Stage& stage, const at::Tensor& flat) {
    std::vector<at::Tensor> all;
    for (const Tensors& layer : stage.views(flat)) {
      all.insert(all.end(), layer.begin(), layer.end());
    }
    return all;
  }

  // Sample indices of a verified step.
  std::pair<const int64_t*, int64_t> samples(const std::vector<int64_t>& epoch,
                                             int64_t step) const {
    return {epoch.data() + order_.step_begin(first_step_ + step),
            order_.step_size(first_step_ + step)};
  }

  void compare_loss(Comparison& compare, int64_t step, double oracle) {
    compare.note(step, job_.plan.num_stages() - 1, job_.model.layers.back()->name(), "loss",
                 relative_difference(losses_.at(static_cast<std::size_t>(step)).loss, oracle));
  }

  // Where each parameter of each stage stands in the model's order: the layers of a stage need not
  // be consecutive.
  std::vector<std::vector<std::size_t>> places_in_model() const {
    const Stage whole(job_.model, 0, static_cast<int>(job_.model.layers.size()));
    std::map<std::pair<std::string, std::string>, std::size_t> place;
    for (const ParameterSlot& slot : whole.slots()) {
      place.emplace(std::pair(slot.layer, slot.parameter), place.size());
    }
    std::vector<std::vector<std::size_t>> places;
    for (const std::vector<ParameterSlot>& slots : slots_) {
      std::vector<std::size_t>& own = places.emplace_back();
      for (const ParameterSlot& slot : slots) {
        own.push_back(place.at({slot.layer, slot.parameter}));
      }
    }
    return places;
  }

  // `place` says where each parameter of the update's stage stands in `facts`.
  void compare_update(Comparison& compare, const RunUpdate& update, const StageFacts& facts,
                      const std::vector<std::size_t>& place) {
    const std::vector<ParameterSlot>& slots = slots_[static_cast<std::size_t>(update.stage)];
    for (std::size_t p = 0; p < slots.size(); ++p) {
      compare.tensor(update.step, update.stage, slots[p].layer, "gradient of " + slots[p].parameter,
                     update.gradients[p], facts.gradients.at(place[p]));
    }
    for (std::size_t p = 0; p < slots.size(); ++p) {
      compare.tensor(update.step, update.stage, slots[p].layer,
                     slots[p].parameter + " after the update", update.after[p],
                     facts.weights.at(place[p]));
    }
  }

  // Replicas of a stage, and parts of a layer that is whole on all, must hold the same bits after
  // every update, whatever the tolerance against the oracle.
  void compare_replicas() {
    Comparison compare(result_, 0.0);
    for (const UnlikeParts& each : unlike_parts_) {
      compare.note(each.step, 0, each.layer, each.what, each.relative);
    }
    const RunUpdate* first = nullptr;
    for (const RunUpdate& update : updates_) {
      if (update.replica == 0) {
        first = &update;
        continue;
      }
      const std::vector<ParameterSlot>& slots = slots_[static_cast<std::size_t>(update.stage)];
      for (std::size_t p = 0; p < slots.size(); ++p) {
        compare.tensor(
            update.step, update.stage, slots[p].layer,
            fmt::format("replica {}'s {} against replica 0's", update.replica, slots[p].parameter),
            update.after[p], first->after[p]);
      }
    }
  }

  void compare_by_rule() {
    result_.oracle = rule_oracle_->text();
    result_.tolerance = kFlushTolerance;
    Comparison compare(result_, kFlushTolerance);
    Comparison compare_bits(result_, 0.0);
    rule_oracle_->check(losses_, compare, compare_bits);
  }

  LrOfStep lr_of_step() const {
    const LrSchedule lr(job_.config.train, order_.steps_per_epoch());
    return [lr, first = first_step_](int64_t step) { return lr.at(first + step); };
  }

  // `parts`: into how many the run cuts a minibatch.
  void compare_whole_batch(int parts) {
    result_.oracle = "one process, whole batches, started from equal weights each step";
    result_.tolerance = kFlushTolerance;
    WholeBatchOracle oracle(job_.model, job_.config.train, parts, lr_of_step());
    const std::vector<int64_t> epoch = order_.epoch(0);
    Comparison compare(result_, kFlushTolerance);
    const std::vector<std::vector<std::size_t>> places = places_in_model();
    std::size_t num_parameters = 0;
    for (const std::vector<std::size_t>& own : places) {
      num_parameters += own.size();
    }
    auto update = updates_.begin();
    for (int64_t step = 0; step < result_.steps; ++step) {
      std::vector<at::Tensor> before(num_parameters);
      for (auto each = update; each != updates_.end() && each->step == step; ++each) {
        const std::vector<std::size_t>& own = places[static_cast<std::size_t>(each->stage)];
        for (std::size_t p = 0; each->replica == 0 && p < own.size(); ++p) {
          before[own[p]] = each->before[p];
        }
      }
      const auto [indices, count] = samples(epoch, step);
      const StepFacts facts =
          oracle.step(before, trained_data(), indices, count, first_step_ + step);
      compare_loss(compare, step, facts.loss_sum);
      for (; update != updates_.end() && update->step == step; ++update) {
        if (update->replica == 0) {
          compare_update(compare, *update, facts.stages.at(0),
                         places[static_cast<std::size_t>(update->stage)]);
        }
      }
    }
    compare_replicas();
  }

  // An oracle of schedules without a flush: the facts of a verified step.
  using StepOracle = std::function<StepFacts(int64_t step, const int64_t* indices, int64_t count)>;

  // The closed form where there is one, else the order itself.
  StepOracle delayed_oracle(const Schedule& schedule) {
    const bool vertical_sync = schedule.policy == "vertical_sync";
    if (schedule.name == "pipedream" && (vertical_sync || schedule.policy == "stash")) {
      result_.oracle =
          vertical_sync
              ? "one thread, delayed SGD: all stages run a minibatch on the version that stage 0 "
                "has when it enters"
              : "one thread, delayed SGD: stage s runs its replica's k-th minibatch on the weights "
                "after max(0, k-w) backwards, w = ceil(ranks from s on / replicas of s) - 1";
      const auto oracle = std::make_shared<DelayedSgdOracle>(job_.model, part_plan_, vertical_sync,
                                                             job_.config.train, lr_of_step());
      return [this, oracle](int64_t step, const int64_t* indices, int64_t count) {
        return oracle->step(trained_data(), indices, count, step + 1 == result_.steps,
                            first_step_ + step);
      };
    }
    result_.oracle = fmt::format(
        "one thread, minibatch by minibatch, on the weights that schedule {} and policy {} give "
        "each forward and backward",
        schedule.name, schedule.policy);
    const auto oracle = std::make_shared<ReplayOracle>(
        job_.model, part_plan_, schedule, result_.steps, schedule.policy,
        job_.config.parallel.blend_lambda, job_.config.train, lr_of_step());
    return [this, oracle](int64_t step, const int64_t* indices, int64_t count) {
      return oracle->step(trained_data(), indices, count, first_step_ + step);
    };
  }

  void compare_delayed(const Schedule& schedule) {
    // Parts add up input gradients in another order than one process.
    result_.tolerance = is_split() ? kFlushTolerance : 0;
    const StepOracle oracle = delayed_oracle(schedule);
    const std::vector<int64_t> epoch = order_.epoch(0);
    Comparison compare(result_, result_.tolerance);
    auto update = updates_.begin();
    for (int64_t step = 0; step < result_.steps; ++step) {
      const auto [indices, count] = samples(epoch, step);
      const StepFacts facts = oracle(step, indices, count);
      compare_loss(compare, step, facts.loss_sum);
      std::set<int> updated;
      for (; update != updates_.end() && update->step == step; ++update) {
        if (update->replica == 0) {
          MILLRACE_CHECK(facts.stages.contains(update->stage),
                         "a stage updated where the oracle does not");
          updated.insert(update->stage);
          std::vector<std::size_t> own(update->after.size());
          std::iota(own.begin(), own.end(), 0);
          compare_update(compare, *update, facts.stages.at(update->stage), own);
        }
      }
      MILLRACE_CHECK(updated.size() == facts.stages.size(),
                     "a stage did not update where the oracle does");
    }
    compare_replicas();
  }

  // A comparison of two parts of a replica.
  struct UnlikeParts {
    int64_t step;
    std::string layer;
    std::string what;
    double relative;
  };

  Job job_;
  VerifyOptions options_;
  Plan part_plan_;  // as the ranks of part 0 see it: what the oracles know
  SampleOrder order_;
  std::unique_ptr<Dataset> changed_;  // null: data.train as it is
  std::string policy_;
  int64_t first_step_ = 0;
  RecordedRun recording_;
  std::optional<RuleOracle> rule_oracle_;  // of a rule with a law of its own
  std::vector<LossSums> losses_;
  std::vector<std::vector<ParameterSlot>> slots_;  // of each stage
  std::vector<RunUpdate> updates_;                 // by step, stage, replica
  std::vector<UnlikeParts> unlike_parts_;
  VerifyResult result_;
};

}  // namespace

Break parse_break(const std::string& name) {
  if (name == "stash") {
    return Break::kStash;
  }
  if (name == "scale") {
    return Break::kScale;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--break " + name +
                  ": expected `stash` (policy latest) or `scale` (gradients divided "
                  "once too often)");
}

VerifyResult verify(const RunConfig& config, const PrepareOptions& prepare_options,
                    const VerifyOptions& options) {
  if (options.steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--steps {}: expected at least 1", options.steps));
  }
  if (options.fault == Break::kStash && options.steps < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                "--break stash shows from the second step on; use --steps 2 or more");
  }
  RunConfig exact = config;
  exact.train.dtype = "float64";
  return Verification(prepare(exact, prepare_options), options).run();
}

}  // namespace millrace
