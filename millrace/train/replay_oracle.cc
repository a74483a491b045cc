#include "millrace/train/replay_oracle.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "millrace/core/run_config.h"
#include "millrace/train/internal/oracle_parts.h"
#include "millrace/train/session.h"

namespace millrace {

ReplayOracle::ReplayOracle(const Model& model, const Plan& plan, const Schedule& schedule,
                           int64_t num_steps, const std::string& policy, double blend_lambda,
                           const TrainConfig& config, LrOfStep lr)
    : num_steps_(num_steps),
      microbatches_(schedule.num_microbatches),
      blends_(policy == "blend"),
      blend_lambda_(blend_lambda),
      seed_(config.seed),
      lr_(internal::or_constant(std::move(lr), config)) {
  int64_t all_rounds = schedule.num_microbatches;
  for (const PlanStage& stage : plan.stages) {
    all_rounds = std::lcm(all_rounds, static_cast<int64_t>(stage.ranks.size()));
  }
  const std::vector<std::vector<int>> stages = stage_layers(plan, model);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Stage stage(model, stages[s]);
    std::unique_ptr<Optimizer> optimizer =
        make_optimizer(config, flat_layout(stage, model.dtype()));
    at::Tensor initial = stage.new_flat();
    stage.initialize(initial, config.seed);
    Part part(std::move(stage), std::move(optimizer));
    const std::vector<int>& ranks = plan.stages[s].ranks;
    part.round = plan.update == UpdateRule::kStep
                     ? all_rounds
                     : std::lcm(microbatches_, static_cast<int64_t>(ranks.size()));
    part.versions.push_back(std::move(initial));
    part.buffers = part.stage.new_buffers();
    for (std::size_t replica = 0; replica < ranks.size(); ++replica) {
      part.sums.push_back(part.stage.new_flat());
    }
    part.order = internal::by_rank(ranks);
    parts_.push_back(std::move(part));
  }
  watch(schedule, policy);
}

// Walks the order of every stage and notes how many updates lie before each action.
void ReplayOracle::watch(const Schedule& schedule, const std::string& policy) {
  const ActionLists lists = unroll(schedule, num_steps_);
  std::map<int64_t, int64_t> entered;  // minibatch -> updates of stage 0 before its first forward
  const auto minibatch = [this](int64_t m) { return m / microbatches_; };
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    Part& part = parts_[s];
    for (std::size_t replica = 0; replica < schedule.stage_ranks[s].size(); ++replica) {
      std::map<int64_t, int64_t> to_come;  // backwards of each round on this rank
      const ActionList& list = lists[static_cast<std::size_t>(schedule.stage_ranks[s][replica])];
      const auto visit = [&](auto&& forward, auto&& backward) {
        for (const Action& action : list) {
          for (int64_t m = action.first; m <= action.last; ++m) {
            if (action.stage == static_cast<int>(s) && action.kind == ActionKind::kForward) {
              forward(m);
            } else if (action.stage == static_cast<int>(s) &&
                       action.kind == ActionKind::kBackward) {
              backward(m, m == action.last);
            }
          }
        }
      };
      visit([](int64_t) {}, [&](int64_t m, bool) { ++to_come[m / part.round]; });
      int64_t updates = 0;
      visit(
          [&](int64_t m) {
            part.seen[m].forward = updates;
            part.seen[m].replica = replica;
            if (s == 0) {
              entered.try_emplace(minibatch(m), updates);
            }
          },
          [&](int64_t m, bool is_last) {
            part.seen[m].backward =
                policy == "latest" || policy == "blend" ? updates : part.seen[m].forward;
            --to_come[m / part.round];
            // An update comes after the whole action.
            while (is_last && to_come.contains(updates) && to_come[updates] == 0) {
              ++updates;
            }
          });
    }
  }
  // ceil(W / (N + 1)) minibatches behind, one more than those that are through: TiMePReSt.
  const auto num_stages = static_cast<int64_t>(parts_.size());
  const int64_t of_a_copy =
      microbatches_ / static_cast<int64_t>(schedule.stage_ranks.front().size());
  const int64_t lag = (num_stages + of_a_copy) / (of_a_copy + 1);
  for (Part& part : parts_) {
    for (auto& [m, seen] : part.seen) {
      const int64_t b = minibatch(m);
      if (policy == "double_buffer") {
        seen.forward = seen.backward = std::max<int64_t>(0, b - 1);
      } else if (policy == "vertical_sync") {
        seen.forward = seen.backward = entered.at(b);
      } else if (policy == "vertical_newest") {
        seen.forward = entered.at(b);
        seen.backward = std::max<int64_t>(0, b + 1 - lag);
      }
    }
  }
}

at::Tensor ReplayOracle::backward_weights(const Part& part, const Seen& seen) const {
  const at::Tensor& newest = part.versions.at(static_cast<std::size_t>(seen.backward));
  if (!blends_ || seen.backward == seen.forward) {
    return newest;
  }
  const at::Tensor& stale = part.versions.at(static_cast<std::size_t>(seen.forward));
  const double share = std::exp(-blend_lambda_ * static_cast<double>(seen.backward - seen.forward));
  if (share == 0 || share == 1) {
    return share == 0 ? newest : stale;
  }
  return newest.clone().mul_(1 - share).add_(stale, share);
}

void ReplayOracle::update(Part& part, StageFacts& facts) {
  at::Tensor sum = internal::take_sum(part.sums, part.order);
  const auto samples = static_cast<double>(part.samples);
  internal::append_parameters(part.stage, sum, samples, facts.gradients);
  at::Tensor next = at::empty_like(part.versions.back());
  part.optimizer->update(part.versions.back(), next, sum,
                         {.samples = samples, .lr = lr_(minibatch_), .clip = 1.0});
  internal::append_parameters(part.stage, next, 1.0, facts.weights);
  part.versions.push_back(std::move(next));
  part.samples = 0;
}

StepFacts ReplayOracle::step(const Dataset& dataset, const int64_t* indices, int64_t count,
                             int64_t step) {
  StepFacts facts;
  std::vector<LossSums> loss(parts_.back().sums.size());  // of each replica, as a run adds them up
  int64_t place = 0;
  int64_t microbatch = minibatch_ * microbatches_;
  for (const int64_t size : split_evenly(count, microbatches_)) {
    if (size > 0) {
      const Batch batch =
          dataset.get(indices + place, size, parts_.front().versions.front().scalar_type());
      std::vector<Stash> stashes(parts_.size());
      std::map<int, at::Tensor> made = {{kModelInput, batch.input}};  // by producer
      for (std::size_t s = 0; s < parts_.size(); ++s) {
        const Part& part = parts_[s];
        const Seen& seen = part.seen.at(microbatch);
        const LayerContext context{.training = true,
                                   .seed = seed_,
                                   .step = step,
                                   .first_place = place,
                                   .buffers = part.buffers};
        internal::run_forward(
            part.stage, context,
            part.stage.views(part.versions.at(static_cast<std::size_t>(seen.forward))),
            batch.target, made, stashes[s], loss[parts_.back().seen.at(microbatch).replica]);
      }
      std::map<int, Tensors> back;
      for (std::size_t s = parts_.size(); s-- > 0;) {
        const Part& part = parts_[s];
        const Seen& seen = part.seen.at(microbatch);
        internal::run_backward(part.stage, part.stage.views(backward_weights(part, seen)),
                               part.stage.views(part.sums[seen.replica]), back, stashes[s]);
      }
    }
    place += size;
    ++microbatch;
  }
  for (const LossSums& each : loss) {
    facts.loss_sum += each.loss;
  }
  const bool last = minibatch_ + 1 == num_steps_;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    Part& part = parts_[s];
    part.samples += count;
    if (last || (minibatch_ + 1) * microbatches_ % part.round == 0) {
      update(part, facts.stages[static_cast<int>(s)]);
    }
  }
  ++minibatch_;
  return facts;
}

}  // namespace millrace
