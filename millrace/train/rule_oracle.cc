#include "millrace/train/rule_oracle.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <utility>

#include "millrace/core/lr_schedule.h"
#include "millrace/runtime/dealer.h"
#include "millrace/schedule/lower.h"
#include "millrace/train/internal/oracle_parts.h"

namespace millrace {

using internal::Comparison;
using internal::StageRun;

RuleOracle::RuleOracle(const Job& job, const Schedule& schedule, const SampleOrder& order,
                       int64_t first_step, int64_t num_steps)
    : job_(job),
      order_(order),
      law_(internal::find_law(job.plan.rule)),
      traits_(find_rule(job.plan.rule).traits),
      samples_(order.epoch(0)),
      num_parts_(schedule.num_microbatches) {
  if (law_ == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("verify knows no oracle of rule {}; write one "
                            "(millrace/train/internal/rule_laws.h), or set rule = \"bsp\"",
                            job.plan.rule))
        .at_key("parallel.rule");
  }
  const LrSchedule lr(job.config.train, order.steps_per_epoch());
  const RuleOptions options = settle_rule(find_rule(job.plan.rule), job.plan.rule_options);
  const std::vector<std::vector<int>> layers = stage_layers(job.plan, job.model);
  for (const std::vector<int>& own : layers) {
    stages_.emplace_back(job.model, own);
  }
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const std::size_t replicas = job.plan.stages[s].ranks.size();
    StageRun& run = runs_.emplace_back();
    run.stage = static_cast<int>(s);
    run.layout = &stages_[s];
    run.train = &job.config.train;
    run.options = options;
    run.first_step = first_step;
    run.initial = stages_[s].new_flat();
    stages_[s].initialize(run.initial, job.config.train.seed);
    const double no_loss = stages_[s].is_last() ? 0 : std::numeric_limits<double>::quiet_NaN();
    for (int64_t step = 0; step < num_steps; ++step) {
      run.samples.push_back(static_cast<double>(order.step_size(first_step + step)));
      run.lr.push_back(lr.at(first_step + step));
      run.own_samples.emplace_back(replicas, 0);
      run.own_losses.emplace_back(replicas, no_loss);
      std::vector<at::Tensor>& gradients = run.gradients.emplace_back();
      for (std::size_t r = 0; r < replicas; ++r) {
        gradients.push_back(stages_[s].new_flat());
      }
    }
    std::vector<Tensors>& buffers = buffers_.emplace_back();
    for (std::size_t r = 0; r < replicas; ++r) {
      buffers.push_back(stages_[s].new_buffers());
    }
  }
  find_parts(schedule);
}

void RuleOracle::find_parts(const Schedule& schedule) {
  const std::vector<StageLink> links = stage_links(job_.plan, job_.model.edges());
  const LoweredSchedule lowered = lower(schedule, job_.plan, 1, links, false);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    std::vector<std::size_t>& own =
        replica_of_.emplace_back(static_cast<std::size_t>(num_parts_), 0);
    const auto blocks = microbatches_by_replica(lowered, static_cast<int>(s));
    for (std::size_t r = 0; r < blocks.size(); ++r) {
      for (const int64_t part : blocks[r]) {
        own.at(static_cast<std::size_t>(part)) = r;
      }
    }
  }
}

std::string RuleOracle::text() const {
  return fmt::format("one process, {} replicas by the law of {}: {}", job_.plan.max_replicas(),
                     law_->rule, law_->text);
}

void RuleOracle::record(Session& session, const internal::RecordedRun& recorded) {
  std::map<std::string, at::Tensor> settled;
  for (const NamedTensor& tensor : session.state()) {
    settled[tensor.name] = tensor.tensor.clone();
  }
  for (StageRun& run : runs_) {
    const std::size_t replicas = job_.plan.stages[static_cast<std::size_t>(run.stage)].ranks.size();
    run.after.assign(run.lr.size(), {});
    for (int replica = 0; replica < static_cast<int>(replicas); ++replica) {
      run.calls.push_back(&recorded.calls(run.stage, replica));
      run.last.push_back(session.held(run.stage, replica).versions.newest().clone());
      for (std::size_t step = 0; step < run.after.size(); ++step) {
        run.after[step].push_back(
            recorded.after(run.stage, replica).at(static_cast<int64_t>(step)));
      }
    }
    run.settled = run.layout->new_flat();
    for (const ParameterSlot& slot : run.layout->slots()) {
      run.settled.narrow(0, slot.offset, slot.elements)
          .copy_(settled.at(slot.layer + "." + slot.parameter).reshape({-1}));
    }
  }
}

// Forward and backward of one part through all stages, on the weights of those replicas that run
// it.
void RuleOracle::run_part(int64_t step, int64_t part, const Batch& batch, int64_t place,
                          LossSums& loss) {
  const auto t = static_cast<std::size_t>(step);
  std::vector<WeightViews> views;
  std::vector<Stash> stashes(stages_.size());
  std::map<int, at::Tensor> made = {{kModelInput, batch.input}};
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const std::size_t r = replica_of_[s][static_cast<std::size_t>(part)];
    StageRun& run = runs_[s];
    views.push_back(stages_[s].views(run.weights_before(step, static_cast<int>(r))));
    const LayerContext context{.training = true,
                               .seed = job_.config.train.seed,
                               .step = run.first_step + step,
                               .first_place = place,
                               .buffers = buffers_[s][r]};
    LossSums own;
    internal::run_forward(stages_[s], context, views.back(), batch.target, made, stashes[s], own);
    run.own_samples[t][r] += static_cast<double>(batch.input.size(0));
    run.own_losses[t][r] += own.loss;
    loss.loss += own.loss;
  }
  std::map<int, Tensors> back;
  for (std::size_t s = stages_.size(); s-- > 0;) {
    const std::size_t r = replica_of_[s][static_cast<std::size_t>(part)];
    internal::run_backward(stages_[s], views[s], stages_[s].views(runs_[s].gradients[t][r]), back,
                           stashes[s]);
  }
}

LossSums RuleOracle::run_step(int64_t step) {
  const int64_t number = runs_.front().first_step + step;
  const int64_t begin = order_.step_begin(number);
  LossSums loss;
  int64_t place = 0;
  int64_t part = 0;
  for (const int64_t size : split_evenly(order_.step_size(number), num_parts_)) {
    if (size > 0) {
      const Batch batch = job_.data.train->get(samples_.data() + begin + place, size, at::kDouble);
      run_part(step, part, batch, place, loss);
    }
    place += size;
    ++part;
  }
  return loss;
}

// Where a rule says that replicas are equal, they are bit for bit.
void RuleOracle::compare_replicas(const StageRun& run, Comparison& compare) const {
  for (int replica = 1; replica < run.num_replicas() && traits_.equal_replicas; ++replica) {
    for (int64_t step = 0; step < run.num_steps(); ++step) {
      compare.flat(step, run.stage, run.layout->slots(), fmt::format("replica {}'s ", replica),
                   " against replica 0's", run.weights_after(step, replica),
                   run.weights_after(step, 0));
    }
  }
}

void RuleOracle::check(const std::vector<LossSums>& losses, Comparison& compare,
                       Comparison& compare_bits) {
  for (int64_t step = 0; step < static_cast<int64_t>(losses.size()); ++step) {
    compare.note(step, job_.plan.num_stages() - 1, job_.model.layers.back()->name(), "loss",
                 internal::relative_difference(losses[static_cast<std::size_t>(step)].loss,
                                               run_step(step).loss));
  }
  for (const StageRun& run : runs_) {
    internal::Judge judge(run, compare);
    (run.num_replicas() == 1 ? internal::check_alone : law_->check)(run, judge);
    judge.expect_no_more_steps();
    compare_replicas(run, compare_bits);
  }
}

}  // namespace millrace
