#include "millrace/schedule/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// A run: places of the list that it and its messages take, and what it computes.
struct Run {
  int stage = 0;
  std::size_t begin = 0;  // of the first action's receives
  std::size_t end = 0;    // one past the last action's sends
  int64_t first = 0;      // microbatches, from the least
  int64_t last = 0;
  bool has_gradient = false;
};

std::vector<Run> runs_of(const ActionList& list) {
  std::vector<Run> runs;
  bool open = false;  // the newest run may go on
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    if (!is_compute(action.kind)) {
      open = open && (is_send(action.kind) || is_receive(action.kind));
      continue;
    }
    if (!open || runs.back().stage != action.stage) {
      std::size_t begin = i;
      while (begin > 0 && is_receive(list[begin - 1].kind) &&
             list[begin - 1].stage == action.stage) {
        --begin;
      }
      runs.push_back({action.stage, begin, i, action.first, action.last, false});
      open = true;
    }
    Run& run = runs.back();
    run.end = i + 1;
    while (run.end < list.size() && is_send(list[run.end].kind) &&
           list[run.end].stage == action.stage) {
      ++run.end;
    }
    run.first = std::min(run.first, action.first);
    run.last = std::max(run.last, action.last);
    run.has_gradient = run.has_gradient || action.kind == ActionKind::kBackward ||
                       action.kind == ActionKind::kWeightGradient;
  }
  return runs;
}

// One rank's list, rewritten.
class ListSharding {
 public:
  ListSharding(const LoweredSchedule& lowered, Shard shard) : lowered_(lowered), shard_(shard) {}

  ActionList rewrite(const ActionList& list) const {
    ActionList result;
    result.reserve(list.size() * 2);
    const std::vector<Run> runs = runs_of(list);
    auto run = runs.begin();
    for (std::size_t i = 0; i <= list.size(); ++i) {
      if (run != runs.end() && run->end == i) {
        close(*run++, result);
      }
      if (run != runs.end() && run->begin == i) {
        open(*run, result);
      }
      if (i < list.size() && !(replaces_reduces() && is(list[i], ActionKind::kReduce))) {
        result.push_back(list[i]);
      }
    }
    if (shard_ != Shard::kZero3) {
      for (const Action& action : list) {
        if (is(action, ActionKind::kStep)) {
          result.push_back(
              Action::range(ActionKind::kGather, action.stage, action.first, action.last));
        }
      }
    }
    return result;
  }

 private:
  bool replaces_reduces() const { return shard_ != Shard::kZero1; }
  // Of a sharded stage.
  bool is(const Action& action, ActionKind kind) const {
    return action.kind == kind && is_sharded(lowered_, action.stage);
  }

  void open(const Run& run, ActionList& result) const {
    if (shard_ == Shard::kZero3 && is_sharded(lowered_, run.stage)) {
      result.push_back(Action::range(ActionKind::kGather, run.stage, run.first, run.last));
    }
  }

  // Memory first, then what takes time.
  void close(const Run& run, ActionList& result) const {
    if (!is_sharded(lowered_, run.stage)) {
      return;
    }
    if (shard_ == Shard::kZero3) {
      result.push_back(Action::range(ActionKind::kFree, run.stage, run.first, run.last));
    }
    if (replaces_reduces() && run.has_gradient) {
      result.push_back(Action::range(ActionKind::kReduce, run.stage, run.first, run.last));
    }
  }

  const LoweredSchedule& lowered_;
  Shard shard_;
};

int64_t meetings_of(const ActionList& list, int stage) {
  return std::count_if(list.begin(), list.end(), [stage](const Action& action) {
    return action.stage == stage &&
           (action.kind == ActionKind::kGather || action.kind == ActionKind::kReduce);
  });
}

}  // namespace

bool is_sharded(const LoweredSchedule& lowered, int stage) {
  return lowered.shard != Shard::kNothing &&
         lowered.stage_ranks.at(static_cast<std::size_t>(stage)).size() > 1;
}

void check_shard(const Plan& plan, const Schedule& schedule) {
  if (plan.shard == Shard::kNothing) {
    return;
  }
  if (!schedule.flush) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("shard = \"{}\" divides the one state that a stage's replicas agree on "
                            "at a flush, and schedule {} has none and keeps older weights; choose "
                            "1f1b, gpipe or breadth-first, or set shard = \"none\"",
                            to_string(plan.shard), schedule.name))
        .at_key("parallel.shard");
  }
  if (plan.rule != "bsp") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("shard = \"{}\" leaves a stage's replicas one copy of its state "
                            "between them, and rule {} is about the copy of each; set rule = "
                            "\"bsp\", or shard = \"none\"",
                            to_string(plan.shard), plan.rule))
        .at_key("parallel.shard");
  }
}

void shard_lists(LoweredSchedule& lowered, Shard shard) {
  lowered.shard = shard;
  const ListSharding sharding(lowered, shard);
  ActionLists lists;
  for (const ActionList& list : lowered.ranks) {
    lists.push_back(sharding.rewrite(list));
  }
  for (int stage = 0; stage < lowered.num_stages; ++stage) {
    const std::vector<int>& ranks = lowered.stage_ranks[static_cast<std::size_t>(stage)];
    const auto count = [&](int rank) {
      return meetings_of(lists[static_cast<std::size_t>(rank)], stage);
    };
    for (const int rank : ranks) {
      if (count(rank) != count(ranks.front())) {
        throw Error(
            ErrorCode::kUnsupported,
            fmt::format("shard = \"{}\": under schedule {} ranks {} and {} come to their stage {} "
                        "unequal numbers of times ({} and {} meetings a step), and replicas must "
                        "meet each time; set shard = \"zero-1\", or choose 1f1b or breadth-first",
                        to_string(shard), lowered.name, ranks.front(), rank, stage,
                        count(ranks.front()), count(rank)))
            .at_key("parallel.shard");
      }
    }
  }
  lowered.ranks = std::move(lists);
}

}  // namespace millrace
