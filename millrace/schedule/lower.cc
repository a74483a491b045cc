#include "millrace/schedule/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/schedule/policy.h"

namespace millrace {
namespace {

// World ranks, their stages and replicas, as the plan says; all lists empty.
LoweredSchedule placed(const Plan& plan) {
  LoweredSchedule lowered;
  lowered.num_stages = plan.num_stages();
  int num_ranks = std::max(plan.workers, 0);
  for (const PlanStage& stage : plan.stages) {
    for (const int rank : stage.ranks) {
      num_ranks = std::max(num_ranks, rank + 1);
    }
  }
  const auto size = static_cast<std::size_t>(num_ranks);
  lowered.ranks.resize(size);
  lowered.stage_of_rank.assign(size, -1);
  lowered.replica_of_rank.assign(size, -1);
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const std::vector<int>& ranks = plan.stages[static_cast<std::size_t>(stage)].ranks;
    for (std::size_t replica = 0; replica < ranks.size(); ++replica) {
      const int rank = ranks[replica];
      if (rank < 0 || lowered.stage_of_rank[static_cast<std::size_t>(rank)] != -1) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("plan: expected each rank in one stage, found rank {} again or "
                                "negative in stage {}; give it another rank",
                                rank, stage));
      }
      lowered.stage_of_rank[static_cast<std::size_t>(rank)] = stage;
      lowered.replica_of_rank[static_cast<std::size_t>(rank)] = static_cast<int>(replica);
    }
    lowered.stage_ranks.push_back(ranks);
  }
  return lowered;
}

void check_stages(const Plan& plan) {
  if (plan.stages.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "plan: expected at least one stage, found none");
  }
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    if (plan.stages[stage].ranks.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("plan: stage {} has no rank; give every stage one", stage));
    }
  }
}

// The plan's ranks, by position of the schedule: the k-th position of a stage gets the stage's k-th
// rank.
std::vector<int> place_positions(const Schedule& schedule, const Plan& plan) {
  if (plan.num_stages() != schedule.num_stages) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the plan has {} stages and schedule {} was made for {}; make it for as many",
                    plan.num_stages(), schedule.name, schedule.num_stages));
  }
  const int num_positions = std::max(schedule.num_ranks, 0);
  if (schedule.period.size() != static_cast<std::size_t>(num_positions)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected one action list for each of {} positions, found {}",
                    schedule.name, schedule.num_ranks, schedule.period.size()));
  }
  std::vector<int> rank_of(static_cast<std::size_t>(num_positions), -1);
  bool single = schedule.stage_ranks.size() == static_cast<std::size_t>(schedule.num_stages);
  for (std::size_t stage = 0; single && stage < schedule.stage_ranks.size(); ++stage) {
    const std::vector<int>& positions = schedule.stage_ranks[stage];
    const std::vector<int>& ranks = plan.stages[stage].ranks;
    if (positions.size() != ranks.size()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("stage {} has {} replicas in the plan and {} in schedule {}; make the "
                      "schedule for the plan's replicas",
                      stage, ranks.size(), positions.size(), schedule.name));
    }
    for (std::size_t k = 0; single && k < positions.size(); ++k) {
      const int position = positions[k];
      single = position >= 0 && position < num_positions &&
               rank_of[static_cast<std::size_t>(position)] == -1;
      if (single) {
        rank_of[static_cast<std::size_t>(position)] = ranks[k];
      }
    }
  }
  if (!single || std::find(rank_of.begin(), rank_of.end(), -1) != rank_of.end()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} places {} stages on {} positions; offered is one stage a position",
                    schedule.name, schedule.num_stages, schedule.num_ranks));
  }
  return rank_of;
}

// Stages without a flush update one after another, each while others still compute with older
// weights: at no moment is there one gradient of the whole model whose norm could be taken.
void check_clipping(const Schedule& schedule) {
  if (!schedule.flush && schedule.num_stages > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schedule {} has no flush, so its {} stages update at different times "
                            "and the gradient of the whole model, whose norm clip_norm limits, is "
                            "never there at once; use a schedule with a flush such as 1f1b, one "
                            "stage, or no clip_norm",
                            schedule.name, schedule.num_stages))
        .at_key("train.clip_norm");
  }
}

// Which position runs what: runner[stage][microbatch], read off the lists.
using Runners = std::vector<std::vector<int>>;

Runners find_runners(const Schedule& schedule, const ActionLists& bare, ActionKind whole,
                     ActionKind half, int64_t num_microbatches) {
  Runners runners(static_cast<std::size_t>(schedule.num_stages),
                  std::vector<int>(static_cast<std::size_t>(num_microbatches), -1));
  for (std::size_t position = 0; position < bare.size(); ++position) {
    for (const Action& action : bare[position]) {
      if (!is_compute(action.kind) || action.stage < 0 || action.stage >= schedule.num_stages ||
          action.first < 0 || action.last >= num_microbatches) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("schedule {}: expected F, B, I or W of stages 0..{} and microbatches "
                        "0..{}, found {} on position {}; validate the schedule first",
                        schedule.name, schedule.num_stages - 1, num_microbatches - 1,
                        to_string(action), position));
      }
      if (action.kind == whole || action.kind == half) {
        for (int64_t m = action.first; m <= action.last; ++m) {
          runners[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(m)] =
              static_cast<int>(position);
        }
      }
    }
  }
  return runners;
}

// Microbatches that each update of a stage applies, with a flush all of the step.
std::vector<int64_t> round_sizes(const Schedule& schedule, const Plan& plan, int64_t all_rounds) {
  std::vector<int64_t> sizes;
  for (const PlanStage& stage : plan.stages) {
    sizes.push_back(schedule.flush                     ? schedule.num_microbatches
                    : plan.update == UpdateRule::kStep ? all_rounds
                                                       : static_cast<int64_t>(stage.ranks.size()));
  }
  return sizes;
}

// Adds messages and updates to one position's bare list; peers are positions still.
class PositionLowering {
 public:
  PositionLowering(const Schedule& schedule, const std::vector<StageLink>& links,
                   const Runners& forwards, const Runners& gradients,
                   const std::vector<int64_t>& round_sizes, int64_t num_microbatches, bool clips)
      : schedule_(schedule),
        links_(links),
        forwards_(forwards),
        gradients_(gradients),
        round_sizes_(round_sizes),
        num_microbatches_(num_microbatches),
        clips_(clips) {}

  ActionList lower(const ActionList& bare, int position, int stage) const {
    ActionList list;
    list.reserve(bare.size() * 3);
    std::vector<int64_t> rounds = completing_backwards(bare, stage);
    int64_t updated = 0;  // rounds
    for (const Action& action : bare) {
      const bool forward = action.kind == ActionKind::kForward;
      const bool gradient =
          action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
      if (forward) {
        add_messages(list, ActionKind::kReceiveForward, action, position);
      } else if (gradient) {
        add_messages(list, ActionKind::kReceiveBackward, action, position);
      }
      list.push_back(action);
      if (forward) {
        add_messages(list, ActionKind::kSendForward, action, position);
      } else if (gradient) {
        add_messages(list, ActionKind::kSendBackward, action, position);
      }
      if (!schedule_.flush && completes(action)) {
        // After the send, so that the stage before need not wait for the update.
        for (int64_t m = action.first; m <= action.last; ++m) {
          --rounds[static_cast<std::size_t>(m / round_size(stage))];
        }
        for (; updated < static_cast<int64_t>(rounds.size()) &&
               rounds[static_cast<std::size_t>(updated)] == 0 &&
               updated <= action.last / round_size(stage);
             ++updated) {
          add_update(list, stage, updated);
        }
      }
    }
    // With a flush the step's update; else rounds in which this replica had no minibatch: it joins
    // the others with nothing.
    for (; updated < static_cast<int64_t>(rounds.size()); ++updated) {
      add_update(list, stage, updated);
    }
    return list;
  }

 private:
  static bool completes(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
  }

  int64_t round_size(int stage) const { return round_sizes_[static_cast<std::size_t>(stage)]; }

  // How many of this position's backwards each round of the stage waits for.
  std::vector<int64_t> completing_backwards(const ActionList& bare, int stage) const {
    const int64_t size = round_size(stage);
    std::vector<int64_t> rounds(static_cast<std::size_t>((num_microbatches_ + size - 1) / size));
    for (const Action& action : bare) {
      for (int64_t m = action.first; completes(action) && m <= action.last; ++m) {
        ++rounds[static_cast<std::size_t>(m / size)];
      }
    }
    return rounds;
  }

  // One message a microbatch and link, whatever the ranges of the two actions at its ends.
  void add_messages(ActionList& list, ActionKind kind, const Action& action, int position) const {
    const bool is_forward = kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward;
    const bool to_later = kind == ActionKind::kSendForward || kind == ActionKind::kReceiveBackward;
    const Runners& runners = is_forward ? forwards_ : gradients_;
    for (int64_t m = action.first; m <= action.last; ++m) {
      for (const StageLink& link : links_) {
        if ((to_later ? link.from : link.to) != action.stage) {
          continue;
        }
        const int other = to_later ? link.to : link.from;
        const int peer = runners[static_cast<std::size_t>(other)][static_cast<std::size_t>(m)];
        if (peer < 0) {
          throw Error(
              ErrorCode::kInvalidArgument,
              fmt::format("schedule {}: nobody runs stage {} for microbatch {}, which {} on "
                          "position {} talks to; validate the schedule first",
                          schedule_.name, other, m, to_string(action), position));
        }
        if (peer != position) {
          Action message = Action::of(kind, action.stage, m);
          message.peer = peer;
          list.push_back(message);
        }
      }
    }
  }

  void add_update(ActionList& list, int stage, int64_t round) const {
    const int64_t first = round * round_size(stage);
    const int64_t last = std::min(first + round_size(stage), num_microbatches_) - 1;
    if (schedule_.stage_ranks[static_cast<std::size_t>(stage)].size() > 1) {
      list.push_back(Action::range(ActionKind::kReduce, stage, first, last));
    }
    if (clips_) {
      list.push_back(Action::range(ActionKind::kNorm, stage, first, last));
    }
    list.push_back(Action::range(ActionKind::kStep, stage, first, last));
  }

  const Schedule& schedule_;
  const std::vector<StageLink>& links_;
  const Runners& forwards_;
  const Runners& gradients_;
  const std::vector<int64_t>& round_sizes_;
  int64_t num_microbatches_;
  bool clips_;
};

// The policy that the schedule names, once it is known to fit.
const PolicyEntry& fitting_policy(const Schedule& schedule, const std::vector<int64_t>& rounds) {
  const PolicyEntry& policy = find_policy(schedule.policy);
  if (policy.needs_flush && !schedule.flush) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {} has no flush, which weight policy `{}` needs; choose stash, "
                    "vertical_sync or latest",
                    schedule.name, policy.name));
  }
  const bool together = std::equal(rounds.begin() + 1, rounds.end(), rounds.begin());
  if (policy.name == "vertical_sync" && !together) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schedule {}: weight policy vertical_sync needs stages that update "
                            "together, and here they have unequal replicas; set update = \"step\", "
                            "or choose stash",
                            schedule.name));
  }
  return policy;
}

}  // namespace

LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps,
                      const std::vector<StageLink>& links, bool clips) {
  check_stages(plan);
  if (clips) {
    check_clipping(schedule);
  }
  const std::vector<int> rank_of = place_positions(schedule, plan);
  if (num_steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: expected at least one step to lower, found {}",
                            schedule.name, num_steps));
  }
  LoweredSchedule lowered = placed(plan);
  lowered.name = schedule.name;
  lowered.policy = schedule.policy;
  lowered.flush = schedule.flush;
  lowered.num_steps = schedule.flush ? 1 : num_steps;
  lowered.microbatches_per_step = schedule.num_microbatches;
  lowered.links = links;
  int64_t all_rounds = 1;
  for (const PlanStage& stage : plan.stages) {
    all_rounds = std::lcm(all_rounds, static_cast<int64_t>(stage.ranks.size()));
  }
  lowered.round_steps = schedule.flush ? 1 : all_rounds;
  const std::vector<int64_t> rounds = round_sizes(schedule, plan, all_rounds);
  const PolicyEntry& policy = fitting_policy(schedule, rounds);

  const ActionLists bare = unroll(schedule, lowered.num_steps);
  const int64_t num_microbatches = lowered.num_steps * lowered.microbatches_per_step;
  const Runners forwards =
      find_runners(schedule, bare, ActionKind::kForward, ActionKind::kForward, num_microbatches);
  const Runners gradients = find_runners(schedule, bare, ActionKind::kBackward,
                                         ActionKind::kInputGradient, num_microbatches);
  const PositionLowering lowering(schedule, lowered.links, forwards, gradients, rounds,
                                  num_microbatches, clips);
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    for (const int position : schedule.stage_ranks[static_cast<std::size_t>(stage)]) {
      const auto p = static_cast<std::size_t>(position);
      ActionList& list = lowered.ranks[static_cast<std::size_t>(rank_of[p])];
      list = lowering.lower(bare[p], position, stage);
      for (Action& action : list) {
        if (action.peer != kNone) {
          action.peer = rank_of[static_cast<std::size_t>(action.peer)];
        }
      }
    }
  }
  policy.annotate(lowered.ranks);
  return lowered;
}

LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps) {
  return lower(schedule, plan, num_steps, chain_links(plan.num_stages()));
}

Plan plan_of_positions(const Schedule& schedule) {
  Plan plan;
  plan.schedule = schedule.name;
  plan.workers = schedule.num_ranks;
  for (const std::vector<int>& positions : schedule.stage_ranks) {
    plan.stages.push_back({.layers = {}, .ranks = positions});
  }
  return plan;
}

LoweredSchedule lower(const Schedule& schedule, int64_t num_steps) {
  return lower(schedule, plan_of_positions(schedule), num_steps);
}

LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches,
                                 const std::vector<StageLink>& links) {
  check_stages(plan);
  if (num_microbatches < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("evaluation: expected at least one microbatch, found {}", num_microbatches));
  }
  LoweredSchedule lowered = placed(plan);
  lowered.name = "evaluation";
  lowered.microbatches_per_step = num_microbatches;
  lowered.links = links;
  const auto rank_of = [&plan](int stage, int64_t microbatch) {
    const std::vector<int>& ranks = plan.stages[static_cast<std::size_t>(stage)].ranks;
    return ranks[static_cast<std::size_t>(microbatch) % ranks.size()];
  };
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    for (int64_t m = 0; m < num_microbatches; ++m) {
      ActionList& list = lowered.ranks[static_cast<std::size_t>(rank_of(stage, m))];
      const auto add_messages = [&](ActionKind kind) {
        const bool sends = kind == ActionKind::kSendForward;
        for (const StageLink& link : lowered.links) {
          if ((sends ? link.from : link.to) == stage) {
            list.push_back(Action::of(kind, stage, m));
            list.back().peer = rank_of(sends ? link.to : link.from, m);
          }
        }
      };
      add_messages(ActionKind::kReceiveForward);
      list.push_back(Action::of(ActionKind::kForward, stage, m));
      add_messages(ActionKind::kSendForward);
    }
  }
  return lowered;
}

LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches) {
  return lower_evaluation(plan, num_microbatches, chain_links(plan.num_stages()));
}

}  // namespace millrace
