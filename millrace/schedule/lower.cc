#include "millrace/schedule/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/shard.h"
#include "millrace/schedule/split.h"

namespace millrace {
namespace {

// World ranks and the stages that they hold, as the plan says; all lists empty.
LoweredSchedule placed(const Plan& plan) {
  LoweredSchedule lowered;
  lowered.num_stages = plan.num_stages();
  int num_ranks = std::max(plan.workers, 0);
  for (const PlanStage& stage : plan.stages) {
    for (const int rank : stage.ranks) {
      num_ranks = std::max(num_ranks, rank + 1);
    }
  }
  lowered.ranks.resize(static_cast<std::size_t>(num_ranks));
  lowered.rank_stages.resize(lowered.ranks.size());
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const std::vector<int>& ranks = plan.stages[static_cast<std::size_t>(stage)].ranks;
    for (const int rank : ranks) {
      if (rank < 0 || std::count(ranks.begin(), ranks.end(), rank) != 1) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("plan: expected different ranks of stage {}, from 0 up, found rank "
                                "{} twice or negative; give it another rank",
                                stage, rank));
      }
      lowered.rank_stages[static_cast<std::size_t>(rank)].push_back(stage);
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
// rank, and must get the same for every stage that it holds.
std::vector<int> place_positions(const Schedule& schedule, const Plan& plan) {
  if (plan.num_stages() != schedule.num_stages) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the plan has {} stages and schedule {} was made for {}; make it for as many",
                    plan.num_stages(), schedule.name, schedule.num_stages));
  }
  const int num_positions = std::max(schedule.num_ranks, 0);
  if (schedule.period.size() != static_cast<std::size_t>(num_positions) ||
      schedule.stage_ranks.size() != static_cast<std::size_t>(schedule.num_stages)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected one action list for each of {} positions and the "
                    "positions of {} stages, found {} and {}",
                    schedule.name, schedule.num_ranks, schedule.num_stages, schedule.period.size(),
                    schedule.stage_ranks.size()));
  }
  std::vector<int> rank_of(static_cast<std::size_t>(num_positions), -1);
  std::map<int, int> position_of;  // the reverse
  for (std::size_t stage = 0; stage < schedule.stage_ranks.size(); ++stage) {
    const std::vector<int>& positions = schedule.stage_ranks[stage];
    const std::vector<int>& ranks = plan.stages[stage].ranks;
    if (positions.size() != ranks.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("stage {} has {} ranks in the plan and {} in schedule {}; make the "
                              "schedule for the plan's replicas",
                              stage, ranks.size(), positions.size(), schedule.name));
    }
    for (std::size_t k = 0; k < positions.size(); ++k) {
      const int position = positions[k];
      if (position < 0 || position >= num_positions) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("schedule {}: stage {} stands on position {}; expected 0..{}",
                                schedule.name, stage, position, num_positions - 1));
      }
      int& rank = rank_of[static_cast<std::size_t>(position)];
      const auto [taken, is_new] = position_of.try_emplace(ranks[k], position);
      if ((rank != -1 && rank != ranks[k]) || taken->second != position) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("schedule {} puts the stages of position {} on one rank, and the "
                                "plan gives stage {} rank {}, where it gave {}; place the stages "
                                "as the schedule does",
                                schedule.name, position, stage, ranks[k],
                                taken->second != position
                                    ? fmt::format("that rank to position {}", taken->second)
                                    : fmt::format("another stage rank {}", rank)));
      }
      rank = ranks[k];
    }
  }
  const auto unused = std::find(rank_of.begin(), rank_of.end(), -1);
  if (unused != rank_of.end()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("schedule {}: position {} holds no stage",
                                                         schedule.name, unused - rank_of.begin()));
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

bool holds(const Schedule& schedule, int position, int stage) {
  const std::vector<int>& positions = schedule.stage_ranks[static_cast<std::size_t>(stage)];
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

Runners find_runners(const Schedule& schedule, const ActionLists& bare, ActionKind whole,
                     ActionKind half, int64_t num_microbatches) {
  Runners runners(static_cast<std::size_t>(schedule.num_stages),
                  std::vector<int>(static_cast<std::size_t>(num_microbatches), -1));
  for (std::size_t position = 0; position < bare.size(); ++position) {
    for (const Action& action : bare[position]) {
      const bool is_held = action.stage >= 0 && action.stage < schedule.num_stages &&
                           holds(schedule, static_cast<int>(position), action.stage);
      if (!is_compute(action.kind) || !is_held || action.first < 0 ||
          action.last >= num_microbatches) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("schedule {}: expected F, B, I or W of the position's stages and of "
                        "microbatches 0..{}, found {} on position {}; validate the schedule first",
                        schedule.name, num_microbatches - 1, to_string(action), position));
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

// Microbatches that each update of a stage applies: with a flush all of the step; else the fewest
// whole steps after which every replica had as many.
std::vector<int64_t> round_sizes(const Schedule& schedule, const Plan& plan, int64_t all_rounds) {
  std::vector<int64_t> sizes;
  const int64_t step = schedule.num_microbatches;
  for (const PlanStage& stage : plan.stages) {
    sizes.push_back(schedule.flush                     ? step
                    : plan.update == UpdateRule::kStep ? std::lcm(step, all_rounds)
                                                       : std::lcm(step, std::ssize(stage.ranks)));
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

  // `stages`: those that the position holds.
  ActionList lower(const ActionList& bare, int position, const std::vector<int>& stages) const {
    ActionList list;
    list.reserve(bare.size() * 3);
    std::map<int, Rounds> rounds;
    for (const int stage : stages) {
      rounds[stage].to_come = completing_backwards(bare, stage);
    }
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
        Rounds& own = rounds.at(action.stage);
        const int64_t size = round_size(action.stage);
        for (int64_t m = action.first; m <= action.last; ++m) {
          --own.to_come[static_cast<std::size_t>(m / size)];
        }
        for (; own.updated < std::ssize(own.to_come) &&
               own.to_come[static_cast<std::size_t>(own.updated)] == 0 &&
               own.updated <= action.last / size;
             ++own.updated) {
          add_updates(list, {action.stage}, own.updated);
        }
      }
    }
    // With a flush the step's update of all stages; else rounds in which this replica had no
    // minibatch: it joins the others with nothing.
    if (schedule_.flush) {
      add_updates(list, stages, 0);
    } else {
      for (const int stage : stages) {
        Rounds& own = rounds.at(stage);
        for (; own.updated < std::ssize(own.to_come); ++own.updated) {
          add_updates(list, {stage}, own.updated);
        }
      }
    }
    return list;
  }

 private:
  // Of one stage.
  struct Rounds {
    std::vector<int64_t> to_come;  // of this position's backwards, in each round
    int64_t updated = 0;           // rounds
  };

  static bool completes(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
  }

  int64_t round_size(int stage) const { return round_sizes_[static_cast<std::size_t>(stage)]; }

  // How many of this position's backwards each round of the stage waits for.
  std::vector<int64_t> completing_backwards(const ActionList& bare, int stage) const {
    const int64_t size = round_size(stage);
    std::vector<int64_t> rounds(static_cast<std::size_t>((num_microbatches_ + size - 1) / size));
    for (const Action& action : bare) {
      const bool counts = completes(action) && action.stage == stage;
      for (int64_t m = action.first; counts && m <= action.last; ++m) {
        ++rounds[static_cast<std::size_t>(m / size)];
      }
    }
    return rounds;
  }

  // One message a microbatch and link, whatever the ranges of the two actions at its ends. What
  // stays on the position needs none.
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
          message.peer_stage = other;
          list.push_back(message);
        }
      }
    }
  }

  // All reductions before all updates: every rank meets the others in the order of stages, and a
  // norm needs all gradients.
  void add_updates(ActionList& list, const std::vector<int>& stages, int64_t round) const {
    const auto range = [&](ActionKind kind, int stage) {
      const int64_t first = round * round_size(stage);
      const int64_t last = std::min(first + round_size(stage), num_microbatches_) - 1;
      return Action::range(kind, stage, first, last);
    };
    for (const int stage : stages) {
      if (schedule_.stage_ranks[static_cast<std::size_t>(stage)].size() > 1) {
        list.push_back(range(ActionKind::kReduce, stage));
      }
    }
    if (clips_) {
      list.push_back(range(ActionKind::kNorm, stages.front()));
    }
    for (const int stage : stages) {
      list.push_back(range(ActionKind::kStep, stage));
    }
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
  if (policy.updates_together && !together) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schedule {}: weight policy {} needs stages that update together, and "
                            "here they have unequal replicas; set update = \"step\", or choose "
                            "stash",
                            schedule.name, policy.name));
  }
  return policy;
}

}  // namespace

LoweredSchedule lower(const Schedule& schedule, const Plan& plan, int64_t num_steps,
                      const std::vector<StageLink>& links, bool clips) {
  if (plan.split_parts > 1) {
    return split_lists(lower(schedule, plan_of_part(plan, 0), num_steps, links, clips), plan);
  }
  check_stages(plan);
  check_shard(plan, schedule);
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
    all_rounds = std::lcm(all_rounds, std::ssize(stage.ranks));
  }
  const std::vector<int64_t> rounds = round_sizes(schedule, plan, all_rounds);
  for (const int64_t round : rounds) {
    lowered.round_steps = std::lcm(lowered.round_steps, round / schedule.num_microbatches);
  }
  const PolicyEntry& policy = fitting_policy(schedule, rounds);

  const ActionLists bare = unroll(schedule, lowered.num_steps);
  const int64_t num_microbatches = lowered.num_steps * lowered.microbatches_per_step;
  const Runners forwards =
      find_runners(schedule, bare, ActionKind::kForward, ActionKind::kForward, num_microbatches);
  const Runners gradients = find_runners(schedule, bare, ActionKind::kBackward,
                                         ActionKind::kInputGradient, num_microbatches);
  const PositionLowering lowering(schedule, lowered.links, forwards, gradients, rounds,
                                  num_microbatches, clips);
  for (std::size_t position = 0; position < bare.size(); ++position) {
    const auto rank = static_cast<std::size_t>(rank_of[position]);
    ActionList& list = lowered.ranks[rank];
    list = lowering.lower(bare[position], static_cast<int>(position), lowered.rank_stages[rank]);
    for (Action& action : list) {
      if (action.peer != kNone) {
        action.peer = rank_of[static_cast<std::size_t>(action.peer)];
      }
    }
  }
  policy.annotate(lowered.ranks);
  if (plan.shard != Shard::kNothing) {
    shard_lists(lowered, plan.shard);
  }
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
  if (plan.split_parts > 1) {
    return split_lists(lower_evaluation(plan_of_part(plan, 0), num_microbatches, links), plan);
  }
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
          const int other = sends ? link.to : link.from;
          if ((sends ? link.from : link.to) == stage && rank_of(other, m) != rank_of(stage, m)) {
            list.push_back(Action::of(kind, stage, m));
            list.back().peer = rank_of(other, m);
            list.back().peer_stage = other;
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
