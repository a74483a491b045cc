#include "millrace/schedule/internal/places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace millrace::internal {
namespace {

constexpr int kNumComputeKinds = 4;
// 8 bytes each: what a corrupt file may make us allocate.
constexpr int64_t kMostCells = int64_t{1} << 26;

std::string holders_text(const std::vector<int>& ranks) {
  return ranks.empty() ? "no rank" : fmt::format("rank {}", fmt::join(ranks, ", "));
}

// A run of microbatches that have no action at all is one finding, so that an empty list does not
// bury the rest.
void report_absent(Check& check, int stage, int64_t first, int64_t last) {
  const std::vector<int>& holders = check.holders[static_cast<std::size_t>(stage)];
  const int rank = holders.empty() ? 0 : holders.front();
  const std::size_t size = check.lists[static_cast<std::size_t>(rank)].size();
  const std::string microbatches = first == last ? fmt::format("microbatch {}", first)
                                                 : fmt::format("microbatches {}-{}", first, last);
  check.findings.push_back(
      {fmt::format("rank {}: no action for stage {}, {}; expected {} on {}", rank, stage,
                   microbatches, check.forward_only ? "F" : "F and B (or I and W)",
                   holders_text(holders)),
       rank, size == 0 ? 0 : size - 1});
}

void check_cell(Check& check, const Places& places, int stage, int64_t microbatch) {
  const Place forward = places.at(ActionKind::kForward, stage, microbatch);
  const Place backward = places.at(ActionKind::kBackward, stage, microbatch);
  const Place input = places.at(ActionKind::kInputGradient, stage, microbatch);
  const Place weight = places.at(ActionKind::kWeightGradient, stage, microbatch);
  const std::string name = fmt::format("stage {}, microbatch {}", stage, microbatch);
  for (const Place place : {backward, input, weight}) {
    if (!place.known()) {
      continue;
    }
    if (check.forward_only) {
      check.add(place, "a backward in a forward-only program; remove it");
    } else if (!forward.known()) {
      check.add(place, fmt::format("{} has a backward and no forward; expected F before it", name));
    } else if (forward.rank != place.rank) {
      check.add(place,
                fmt::format("{} has its forward on rank {}; its backward must run there, where "
                            "its activations are",
                            name, forward.rank));
    } else if (forward.index > place.index) {
      check.add(place,
                fmt::format("the backward of {} stands before its forward, which is action {}",
                            name, forward.index));
    }
  }
  if (check.forward_only) {
    return;
  }
  if (backward.known() && (input.known() || weight.known())) {
    check.add(input.known() ? input : weight,
              fmt::format("{} already has a B, which is both halves", name));
  } else if (input.known() && !weight.known()) {
    check.add(input, fmt::format("{} has its I and no W; its weight gradient is missing", name));
  } else if (weight.known() && !input.known()) {
    check.add(weight, fmt::format("{} has its W and no I before it", name));
  } else if (input.known() && input.rank == weight.rank && input.index > weight.index) {
    check.add(weight, fmt::format("the W of {} stands before its I, which is action {}", name,
                                  input.index));
  } else if (forward.known() && !backward.known() && !input.known()) {
    check.add(
        forward,
        fmt::format("{} has a forward and no backward; expected B (or I and W) after it", name));
  }
}

}  // namespace

std::string in_words(const Action& action) {
  if (action.first == kNone) {
    return fmt::format("{} of stage {}", to_string(action.kind), action.stage);
  }
  return action.first == action.last
             ? fmt::format("{} of stage {}, microbatch {}", to_string(action.kind), action.stage,
                           action.first)
             : fmt::format("{} of stage {}, microbatches {}-{}", to_string(action.kind),
                           action.stage, action.first, action.last);
}

void Check::add(Place place, const std::string& text) {
  findings.push_back({fmt::format("rank {}, action {} ({}): {}", place.rank, place.index,
                                  to_string(at(place)), text),
                      place.rank, place.index});
}

bool check_shape(Check& check) {
  const auto refuse = [&check](const std::string& text) {
    check.findings.push_back({text, 0, 0});
    return false;
  };
  if (check.num_stages < 1 || check.num_microbatches < 1) {
    return refuse(
        fmt::format("expected at least one stage and one microbatch, found {} stages and {} "
                    "microbatches",
                    check.num_stages, check.num_microbatches));
  }
  const int64_t most = kMostCells / kNumComputeKinds / check.num_stages;
  if (check.num_microbatches > most) {
    return refuse(
        fmt::format("{} microbatches are more than can be checked at once with {} stages; "
                    "check at most {}",
                    check.num_microbatches, check.num_stages, most));
  }
  for (std::size_t stage = 0; stage < check.holders.size(); ++stage) {
    if (check.holders[stage].empty()) {
      return refuse(fmt::format("stage {} is held by no rank", stage));
    }
    for (const int rank : check.holders[stage]) {
      if (rank < 0 || static_cast<std::size_t>(rank) >= check.lists.size()) {
        return refuse(fmt::format("stage {} is held by rank {}; expected a rank in 0..{}", stage,
                                  rank, static_cast<int64_t>(check.lists.size()) - 1));
      }
    }
  }
  return true;
}

bool check_bounds(Check& check, Place place) {
  const Action& action = check.at(place);
  if (action.stage < 0 || action.stage >= check.num_stages) {
    check.add(place, fmt::format("expected a stage in 0..{}, found {}", check.num_stages - 1,
                                 action.stage));
    return false;
  }
  if (action.first < 0 || action.last < action.first || action.last >= check.num_microbatches) {
    check.add(place, fmt::format("expected microbatches in 0..{}, found {} to {}",
                                 check.num_microbatches - 1, action.first, action.last));
    return false;
  }
  const std::vector<int>& holders = check.holders[static_cast<std::size_t>(action.stage)];
  if (std::find(holders.begin(), holders.end(), place.rank) == holders.end()) {
    check.add(place, fmt::format("rank {} does not hold stage {}; {} does", place.rank,
                                 action.stage, holders_text(holders)));
    return false;
  }
  return true;
}

Places::Places(Check& check) : num_microbatches_(check.num_microbatches) {
  cells_.resize(
      static_cast<std::size_t>(kNumComputeKinds * check.num_stages * check.num_microbatches));
  for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
    const ActionList& list = check.lists[rank];
    usable_.emplace_back(list.size(), false);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Place place{static_cast<int32_t>(rank), static_cast<uint32_t>(i)};
      if (!is_compute(list[i].kind) || !check_bounds(check, place)) {
        continue;
      }
      usable_[rank][i] = true;
      for (int64_t m = list[i].first; m <= list[i].last; ++m) {
        Place& known = cells_[cell(list[i].kind, list[i].stage, m)];
        if (known.known()) {
          check.add(place, fmt::format("{} of stage {}, microbatch {} already stands on rank {} as "
                                       "action {}; expected it once",
                                       to_string(list[i].kind), list[i].stage, m, known.rank,
                                       known.index));
        } else {
          known = place;
        }
      }
    }
  }
}

std::size_t Places::cell(ActionKind kind, int stage, int64_t microbatch) const {
  const int64_t row = int64_t{stage} * num_microbatches_ + microbatch;
  return static_cast<std::size_t>(row * kNumComputeKinds + static_cast<int>(kind));
}

Place Places::gradient(int stage, int64_t microbatch) const {
  const Place backward = at(ActionKind::kBackward, stage, microbatch);
  return backward.known() ? backward : at(ActionKind::kInputGradient, stage, microbatch);
}

Place Places::last_backward(int stage, int64_t microbatch) const {
  const Place backward = at(ActionKind::kBackward, stage, microbatch);
  return backward.known() ? backward : at(ActionKind::kWeightGradient, stage, microbatch);
}

void check_pairs(Check& check, const Places& places) {
  for (int stage = 0; stage < check.num_stages; ++stage) {
    int64_t absent_from = kNone;
    for (int64_t m = 0; m < check.num_microbatches; ++m) {
      const bool present = places.at(ActionKind::kForward, stage, m).known() ||
                           places.gradient(stage, m).known() ||
                           places.last_backward(stage, m).known();
      if (present && absent_from != kNone) {
        report_absent(check, stage, absent_from, m - 1);
        absent_from = kNone;
      } else if (!present && absent_from == kNone) {
        absent_from = m;
      }
      if (present) {
        check_cell(check, places, stage, m);
      }
    }
    if (absent_from != kNone) {
      report_absent(check, stage, absent_from, check.num_microbatches - 1);
    }
  }
}

}  // namespace millrace::internal
