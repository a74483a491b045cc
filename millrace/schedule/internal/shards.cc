#include "millrace/schedule/internal/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "millrace/schedule/shard.h"

namespace millrace::internal {

Shards::Shards(Check& check, const LoweredSchedule& lowered) : check_(check), lowered_(lowered) {
  for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
    for (std::size_t i = 0; i < check.lists[rank].size(); ++i) {
      if (is_meeting(check.lists[rank][i])) {
        meetings_[{static_cast<int>(rank), check.lists[rank][i].stage}].push_back(
            {static_cast<int32_t>(rank), static_cast<uint32_t>(i)});
      }
    }
  }
}

bool Shards::is_meeting(const Action& action) const {
  return (action.kind == ActionKind::kGather || action.kind == ActionKind::kReduce) &&
         action.stage >= 0 && action.stage < check_.num_stages &&
         is_sharded(lowered_, action.stage);
}

void Shards::check() {
  for (std::size_t rank = 0; rank < check_.lists.size(); ++rank) {
    check_rank(rank);
  }
  for (int stage = 0; stage < check_.num_stages; ++stage) {
    compare(stage);
  }
}

void Shards::check_rank(std::size_t rank) {
  const ActionList& list = check_.lists[rank];
  const bool starts_whole = lowered_.shard != Shard::kZero3 || check_.forward_only;
  std::map<int, State> stages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place place{static_cast<int32_t>(rank), static_cast<uint32_t>(i)};
    const Action& action = list[i];
    const bool moves = action.kind == ActionKind::kGather || action.kind == ActionKind::kFree;
    if (action.stage < 0 || action.stage >= check_.num_stages) {
      continue;  // reported
    }
    if (!is_sharded(lowered_, action.stage)) {
      if (moves) {
        check_.add(place, "its stage is not sharded; there is nothing to join or to free");
      }
      continue;
    }
    if (moves && check_.forward_only) {
      check_.add(place, "in a forward-only program, which is run on whole weights; remove it");
      continue;
    }
    const auto [state, added] = stages.try_emplace(action.stage);
    if (added) {
      state->second.whole = starts_whole;
    }
    check_action(place, state->second);
  }
  for (const auto& [stage, state] : stages) {
    if (state.whole != starts_whole) {
      const Place end{static_cast<int32_t>(rank), static_cast<uint32_t>(list.size() - 1)};
      check_.add(end,
                 starts_whole
                     ? fmt::format("expected a GATHER of stage {} after its STEP, which the "
                                   "next step's forwards need",
                                   stage)
                     : fmt::format("expected a FREE of stage {} before the step's end", stage));
    }
  }
}

void Shards::check_action(Place place, State& state) {
  switch (check_.at(place).kind) {
    case ActionKind::kGather:
      if (state.whole) {
        check_.add(place, "the stage's weights are whole already");
      }
      state.whole = true;
      return;
    case ActionKind::kFree:
      if (lowered_.shard != Shard::kZero3) {
        check_.add(place, fmt::format("{} keeps weights whole", to_string(lowered_.shard)));
      } else if (!state.whole) {
        check_.add(place, "the stage's weights are not whole; expected a GATHER before it");
      }
      state.whole = lowered_.shard != Shard::kZero3;
      return;
    case ActionKind::kReduce:
      state.unreduced = -1;
      state.reduced = true;
      return;
    case ActionKind::kStep:
      if (state.whole && lowered_.shard == Shard::kZero3) {
        check_.add(place, "the stage's weights are whole; expected a FREE before it");
      }
      if (state.unreduced >= 0) {
        check_.add(place, fmt::format("expected a REDUCE after {}, which is action {}, and before "
                                      "it",
                                      to_string(check_.lists[static_cast<std::size_t>(
                                          place.rank)][static_cast<std::size_t>(state.unreduced)]),
                                      state.unreduced));
      } else if (!state.reduced) {
        check_.add(place, "its stage is sharded; expected a REDUCE before it");
      }
      state.reduced = false;
      state.whole = false;  // the other shards have moved on
      return;
    default:
      break;
  }
  if (!is_compute(check_.at(place).kind)) {
    return;
  }
  if (!state.whole) {
    check_.add(place, "the stage's weights are not whole here; expected a GATHER before it");
    state.whole = true;  // said once
  }
  if (check_.at(place).kind == ActionKind::kBackward ||
      check_.at(place).kind == ActionKind::kWeightGradient) {
    state.unreduced = static_cast<int64_t>(place.index);
  }
}

void Shards::compare(int stage) {
  const std::vector<int>& replicas = check_.holders[static_cast<std::size_t>(stage)];
  const std::vector<Place>& expected = meetings_[{replicas.front(), stage}];
  for (const int rank : replicas) {
    const std::vector<Place>& found = meetings_[{rank, stage}];
    for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
      if (check_.at(found[i]).kind != check_.at(expected[i]).kind) {
        check_.add(found[i], fmt::format("replica rank {} has {} at this point", replicas.front(),
                                         to_string(check_.at(expected[i]))));
      }
    }
    if (expected.size() != found.size()) {
      const bool more = found.size() > expected.size();
      const Place place = more ? found[expected.size()] : expected[found.size()];
      check_.add(place, fmt::format("rank {} has no {} to meet it", more ? replicas.front() : rank,
                                    to_string(check_.at(place).kind)));
    }
  }
}

void Shards::add_requirements(Place place, std::vector<Place>& required) const {
  if (!is_meeting(check_.at(place))) {
    return;
  }
  const int stage = check_.at(place).stage;
  const auto of = [&](int rank) -> const std::vector<Place>& {
    static const std::vector<Place> none;
    const auto known = meetings_.find({rank, stage});
    return known == meetings_.end() ? none : known->second;
  };
  const std::vector<Place>& own = of(place.rank);
  const auto found = std::find_if(own.begin(), own.end(),
                                  [place](Place other) { return other.index == place.index; });
  const auto number = static_cast<std::size_t>(found - own.begin());
  for (const int rank : check_.holders[static_cast<std::size_t>(stage)]) {
    const std::vector<Place>& others = of(rank);
    if (number < others.size() && rank != place.rank && others[number].index > 0) {
      required.push_back({others[number].rank, others[number].index - 1});
    }
  }
}

}  // namespace millrace::internal
