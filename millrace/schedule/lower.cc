#include "millrace/schedule/lower.h"

#include <fmt/format.h>

#include <algorithm>

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

// The number of replicas that every stage has.
int common_replicas(const Plan& plan, const std::string& name) {
  if (plan.stages.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "plan: expected at least one stage, found none");
  }
  const std::size_t replicas = plan.stages.front().ranks.size();
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const std::size_t found = plan.stages[stage].ranks.size();
    if (found == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("plan: stage {} has no rank; give every stage one", stage));
    }
    if (found != replicas) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: stage 0 has {} replicas and stage {} has {}; offered are plans whose "
                      "stages all have the same number of replicas",
                      name, replicas, stage, found));
    }
  }
  return static_cast<int>(replicas);
}

void check_placement(const Schedule& schedule, const Plan& plan, int replicas) {
  if (plan.num_stages() != schedule.num_stages) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the plan has {} stages and schedule {} was made for {}; make it for as many",
                    plan.num_stages(), schedule.name, schedule.num_stages));
  }
  if (!schedule.flush && replicas != 1) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} has no flush and the plan has {} replicas of each stage; offered "
                    "are one replica a stage without a flush, or a schedule with a flush "
                    "such as 1f1b",
                    schedule.name, replicas));
  }
  if (schedule.period.size() != static_cast<std::size_t>(std::max(schedule.num_ranks, 0))) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected one action list for each of {} positions, found {}",
                    schedule.name, schedule.num_ranks, schedule.period.size()));
  }
  std::vector<int> stages_held(static_cast<std::size_t>(std::max(schedule.num_ranks, 0)), 0);
  bool straight = schedule.num_ranks == schedule.num_stages &&
                  schedule.stage_ranks.size() == static_cast<std::size_t>(schedule.num_stages);
  for (const std::vector<int>& positions : schedule.stage_ranks) {
    straight = straight && positions.size() == 1 && positions[0] >= 0 &&
               positions[0] < schedule.num_ranks &&
               ++stages_held[static_cast<std::size_t>(positions[0])] == 1;
  }
  if (!straight) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} places {} stages on {} positions; offered is one stage a position",
                    schedule.name, schedule.num_stages, schedule.num_ranks));
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

// Adds messages and updates to one position's bare list; peers are positions still.
class PositionLowering {
 public:
  PositionLowering(const Schedule& schedule, const Runners& forwards, const Runners& gradients,
                   bool reduces)
      : schedule_(schedule), forwards_(forwards), gradients_(gradients), reduces_(reduces) {}

  ActionList lower(const ActionList& bare, int position, int stage) const {
    ActionList list;
    list.reserve(bare.size() * 3);
    for (const Action& action : bare) {
      const bool forward = action.kind == ActionKind::kForward;
      const bool gradient =
          action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
      const bool completes =
          action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
      if (forward) {
        add_messages(list, ActionKind::kReceiveForward, action, action.stage - 1, position,
                     forwards_);
      } else if (gradient) {
        add_messages(list, ActionKind::kReceiveBackward, action, action.stage + 1, position,
                     gradients_);
      }
      list.push_back(action);
      if (forward) {
        add_messages(list, ActionKind::kSendForward, action, action.stage + 1, position, forwards_);
      } else if (gradient) {
        add_messages(list, ActionKind::kSendBackward, action, action.stage - 1, position,
                     gradients_);
      }
      // After the send, so that the stage before need not wait for the update.
      if (completes && !schedule_.flush) {
        add_update(list, action.stage, action.first, action.last);
      }
    }
    if (schedule_.flush) {
      add_update(list, stage, 0, schedule_.num_microbatches - 1);
    }
    return list;
  }

 private:
  // One message a microbatch, whatever the ranges of the two actions at its ends.
  void add_messages(ActionList& list, ActionKind kind, const Action& action, int other_stage,
                    int position, const Runners& runners) const {
    if (other_stage < 0 || other_stage >= schedule_.num_stages) {
      return;
    }
    for (int64_t m = action.first; m <= action.last; ++m) {
      const int peer = runners[static_cast<std::size_t>(other_stage)][static_cast<std::size_t>(m)];
      if (peer < 0) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("schedule {}: nobody runs stage {} for microbatch {}, which {} on "
                                "position {} talks to; validate the schedule first",
                                schedule_.name, other_stage, m, to_string(action), position));
      }
      if (peer != position) {
        Action message = Action::of(kind, action.stage, m);
        message.peer = peer;
        list.push_back(message);
      }
    }
  }

  void add_update(ActionList& list, int stage, int64_t first, int64_t last) const {
    if (reduces_) {
      list.push_back(Action::range(ActionKind::kReduce, stage, first, last));
    }
    list.push_back(Action::range(ActionKind::kStep, stage, first, last));
  }

  const Schedule& schedule_;
  const Runners& forwards_;
  const Runners& gradients_;
  bool reduces_;
};

}  // namespace

LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps) {
  const int replicas = common_replicas(plan, "schedule " + schedule.name);
  check_placement(schedule, plan, replicas);
  if (num_steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: expected at least one step to lower, found {}",
                            schedule.name, num_steps));
  }
  const PolicyEntry& policy = find_policy(schedule.policy);
  if (policy.needs_flush && !schedule.flush) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {} has no flush, which weight policy `{}` needs; choose stash or "
                    "latest",
                    schedule.name, policy.name));
  }

  LoweredSchedule lowered = placed(plan);
  lowered.name = schedule.name;
  lowered.policy = schedule.policy;
  lowered.flush = schedule.flush;
  lowered.num_steps = schedule.flush ? 1 : num_steps;
  lowered.microbatches_per_step = schedule.num_microbatches;

  const ActionLists bare = unroll(schedule, lowered.num_steps);
  const int64_t num_microbatches = lowered.num_steps * lowered.microbatches_per_step;
  const Runners forwards =
      find_runners(schedule, bare, ActionKind::kForward, ActionKind::kForward, num_microbatches);
  const Runners gradients = find_runners(schedule, bare, ActionKind::kBackward,
                                         ActionKind::kInputGradient, num_microbatches);
  std::vector<int> stage_of_position(bare.size());
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const int position = schedule.stage_ranks[static_cast<std::size_t>(stage)][0];
    stage_of_position[static_cast<std::size_t>(position)] = stage;
  }
  const auto rank_of = [&](int position, int replica) {
    const int stage = stage_of_position[static_cast<std::size_t>(position)];
    return plan.stages[static_cast<std::size_t>(stage)].ranks[static_cast<std::size_t>(replica)];
  };

  const PositionLowering lowering(schedule, forwards, gradients, replicas > 1);
  for (std::size_t position = 0; position < bare.size(); ++position) {
    ActionList list =
        lowering.lower(bare[position], static_cast<int>(position), stage_of_position[position]);
    policy.annotate(list);
    for (int replica = 0; replica < replicas; ++replica) {
      ActionList& mine =
          lowered.ranks[static_cast<std::size_t>(rank_of(static_cast<int>(position), replica))];
      mine = list;
      for (Action& action : mine) {
        if (action.peer != kNone) {
          action.peer = rank_of(action.peer, replica);
        }
      }
    }
  }
  return lowered;
}

LoweredSchedule lower(const Schedule& schedule, int64_t num_steps) {
  Plan plan;
  plan.schedule = schedule.name;
  plan.workers = schedule.num_ranks;
  for (const std::vector<int>& positions : schedule.stage_ranks) {
    plan.stages.push_back({.layers = {}, .ranks = positions});
  }
  return lower(schedule, plan, num_steps);
}

LoweredSchedule lower_evaluation(const Plan& plan, int64_t num_microbatches) {
  const int replicas = common_replicas(plan, "evaluation");
  if (num_microbatches < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("evaluation: expected at least one microbatch, found {}", num_microbatches));
  }
  LoweredSchedule lowered = placed(plan);
  lowered.name = "evaluation";
  lowered.microbatches_per_step = num_microbatches;
  const int last_stage = plan.num_stages() - 1;
  for (int stage = 0; stage <= last_stage; ++stage) {
    for (int64_t m = 0; m < num_microbatches; ++m) {
      const auto replica = static_cast<std::size_t>(m % replicas);
      const auto rank_of = [&plan, replica](int s) {
        return plan.stages[static_cast<std::size_t>(s)].ranks[replica];
      };
      ActionList& list = lowered.ranks[static_cast<std::size_t>(rank_of(stage))];
      if (stage > 0) {
        list.push_back(Action::of(ActionKind::kReceiveForward, stage, m));
        list.back().peer = rank_of(stage - 1);
      }
      list.push_back(Action::of(ActionKind::kForward, stage, m));
      if (stage < last_stage) {
        list.push_back(Action::of(ActionKind::kSendForward, stage, m));
        list.back().peer = rank_of(stage + 1);
      }
    }
  }
  return lowered;
}

}  // namespace millrace
