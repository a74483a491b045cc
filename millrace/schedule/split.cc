#include "millrace/schedule/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

Plan plan_of_part(const Plan& plan, int part) {
  MILLRACE_CHECK(part >= 0 && part < plan.split_parts, "no such part");
  Plan own = plan;
  own.split_parts = 1;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const std::vector<int>& all = plan.stages[stage].ranks;
    const auto parts = static_cast<std::size_t>(plan.split_parts);
    if (all.size() % parts != 0) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("plan: stage {} has {} ranks, which are not replicas of {} parts; give "
                      "it a multiple of as many",
                      stage, all.size(), parts));
    }
    std::vector<int>& ranks = own.stages[stage].ranks;
    ranks.clear();
    for (auto i = static_cast<std::size_t>(part); i < all.size(); i += parts) {
      ranks.push_back(all[i]);
    }
  }
  return own;
}

Plan split_plan(const Plan& plan, int parts) {
  MILLRACE_CHECK(plan.split_parts == 1 && parts >= 1, "a plan is split once");
  Plan split = plan;
  split.split_parts = parts;
  split.workers = plan.workers * parts;
  for (PlanStage& stage : split.stages) {
    const std::vector<int> ranks = std::exchange(stage.ranks, {});
    for (const int rank : ranks) {
      for (int part = 0; part < parts; ++part) {
        stage.ranks.push_back(rank * parts + part);
      }
    }
  }
  return split;
}

std::vector<std::vector<int>> ranks_of_parts(const Plan& plan) {
  int num_ranks = plan.workers;
  for (const PlanStage& stage : plan.stages) {
    for (const int rank : stage.ranks) {
      num_ranks = std::max(num_ranks, rank + 1);
    }
  }
  const auto first = plan_of_part(plan, 0);
  std::vector<std::vector<int>> ranks;
  for (int part = 0; part < plan.split_parts; ++part) {
    const Plan own = plan_of_part(plan, part);
    std::vector<int>& of = ranks.emplace_back(static_cast<std::size_t>(num_ranks), -1);
    for (std::size_t stage = 0; stage < own.stages.size(); ++stage) {
      for (std::size_t i = 0; i < own.stages[stage].ranks.size(); ++i) {
        const int at = first.stages[stage].ranks[i];
        const int rank = own.stages[stage].ranks[i];
        int& known = of[static_cast<std::size_t>(at)];
        if (known != -1 && known != rank) {
          throw Error(
              ErrorCode::kInvalidArgument,
              fmt::format("plan: part {} of what rank {} holds part 0 of is on ranks {} and "
                          "{}; put a rank's parts on one rank each",
                          part, at, known, rank));
        }
        known = rank;
      }
    }
  }
  return ranks;
}

LoweredSchedule split_lists(LoweredSchedule lowered, const Plan& plan) {
  lowered.split_parts = plan.split_parts;
  const std::vector<std::vector<int>> ranks = ranks_of_parts(plan);
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    for (std::size_t part = 1; part < ranks.size(); ++part) {
      const int other = ranks[part][rank];
      if (other < 0) {
        continue;
      }
      ActionList& list = lowered.ranks[static_cast<std::size_t>(other)];
      list = lowered.ranks[rank];
      for (Action& action : list) {
        if (action.peer != kNone) {
          action.peer = ranks[part][static_cast<std::size_t>(action.peer)];
        }
      }
      lowered.rank_stages[static_cast<std::size_t>(other)] = lowered.rank_stages[rank];
    }
  }
  for (std::size_t stage = 0; stage < lowered.stage_ranks.size(); ++stage) {
    lowered.stage_ranks[stage] = plan.stages[stage].ranks;
  }
  return lowered;
}

}  // namespace millrace
