#include "millrace/schedule/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/core/grid.h"
#include "millrace/schedule/internal/places.h"
#include "millrace/schedule/internal/replay.h"
#include "millrace/schedule/lower.h"

namespace millrace {
namespace {

using internal::Check;
using internal::Place;
using internal::Places;

// A grid of many ranks is long; beyond these a finding has its line only.
constexpr std::size_t kMostGrids = 8;

void check_bare_form(Check& check) {
  for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
    for (std::size_t i = 0; i < check.lists[rank].size(); ++i) {
      const Action& action = check.lists[rank][i];
      const Place place{static_cast<int32_t>(rank), static_cast<uint32_t>(i)};
      if (!is_compute(action.kind)) {
        check.add(place, "expected F, B, I or W; communication and updates are added by lowering");
      } else if (action.peer != kNone || action.version != kNone) {
        check.add(place, "expected neither a peer nor a weight version; lowering adds them");
      }
    }
  }
}

// What a bare action needs from other stages, by whatever message lowering will make of it.
internal::Requirements bare_requirements(const Check& check, const Places& places) {
  return [&check, &places](Place place, std::vector<Place>& required) {
    const Action& action = check.at(place);
    if (!places.usable(place)) {
      return;
    }
    for (int64_t m = action.first; m <= action.last; ++m) {
      if (action.kind == ActionKind::kForward && action.stage > 0) {
        required.push_back(places.at(ActionKind::kForward, action.stage - 1, m));
      } else if (action.kind == ActionKind::kBackward ||
                 action.kind == ActionKind::kInputGradient) {
        required.push_back(places.at(ActionKind::kForward, action.stage, m));
        if (action.stage + 1 < check.num_stages) {
          required.push_back(places.gradient(action.stage + 1, m));
        }
      } else if (action.kind == ActionKind::kWeightGradient) {
        required.push_back(places.at(ActionKind::kInputGradient, action.stage, m));
      }
    }
    // What is missing has its own finding.
    std::erase_if(required, [](Place needed) { return !needed.known(); });
  };
}

[[noreturn]] void refuse(const Schedule& schedule, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("schedule {}: {}", schedule.name, text));
}

// What unrolling and lowering take for granted.
void check_parts(const Schedule& schedule) {
  const auto num_ranks = static_cast<std::size_t>(std::max(schedule.num_ranks, 0));
  if (schedule.num_ranks < 1 || schedule.num_stages < 1 || schedule.num_microbatches < 1 ||
      schedule.period_microbatches < 1) {
    refuse(schedule,
           fmt::format("expected at least one rank, stage and microbatch, found {} ranks, {} "
                       "stages, {} microbatches a step, {} a period",
                       schedule.num_ranks, schedule.num_stages, schedule.num_microbatches,
                       schedule.period_microbatches));
  }
  if (schedule.stage_ranks.size() != static_cast<std::size_t>(schedule.num_stages)) {
    refuse(schedule, fmt::format("expected the ranks of {} stages, found those of {}",
                                 schedule.num_stages, schedule.stage_ranks.size()));
  }
  if (schedule.period.size() != num_ranks) {
    refuse(schedule, fmt::format("expected one action list for each of {} ranks, found {}",
                                 num_ranks, schedule.period.size()));
  }
  for (const ActionLists* part : {&schedule.prologue, &schedule.epilogue}) {
    if (!part->empty() && part->size() != num_ranks) {
      refuse(schedule, fmt::format("expected prologue and epilogue of {} ranks, found {}",
                                   num_ranks, part->size()));
    }
  }
}

// Steps that show the prologue, two periods and the epilogue.
int64_t representative_steps(const Schedule& schedule) {
  int64_t last = 0;
  for (const ActionLists* part : {&schedule.prologue, &schedule.period, &schedule.epilogue}) {
    for (const ActionList& list : *part) {
      for (const Action& action : list) {
        last = std::max(last, action.last);
      }
    }
  }
  constexpr int64_t kMost = 1 << 20;
  if (last >= kMost || schedule.period_microbatches > kMost) {
    refuse(schedule, fmt::format("expected microbatches below {} in its parts, found {}", kMost,
                                 std::max(last, schedule.period_microbatches - 1)));
  }
  const int64_t shown = last + 1 + 2 * schedule.period_microbatches;
  return (shown + schedule.num_microbatches - 1) / schedule.num_microbatches;
}

}  // namespace

std::vector<Finding> find_faults(const ActionLists& lists,
                                 const std::vector<std::vector<int>>& stage_ranks,
                                 int64_t num_microbatches) {
  Check check{.lists = lists,
              .num_stages = static_cast<int>(stage_ranks.size()),
              .num_microbatches = num_microbatches,
              .holders = stage_ranks,
              .forward_only = false,
              .findings = {}};
  if (!internal::check_shape(check)) {
    return check.findings;
  }
  check_bare_form(check);
  const Places places(check);
  internal::check_pairs(check, places);
  internal::check_deadlock(check, bare_requirements(check, places));
  return check.findings;
}

void throw_findings(const std::vector<Finding>& findings, const ActionLists& lists,
                    const std::string& name) {
  if (findings.empty()) {
    return;
  }
  std::string text = fmt::format("schedule {} cannot run: {} finding{}", name, findings.size(),
                                 findings.size() == 1 ? "" : "s");
  std::size_t number = 0;
  for (const Finding& finding : findings) {
    text += fmt::format("\n{}. {}", ++number, finding.text);
    const bool has_cell = finding.rank >= 0 &&
                          static_cast<std::size_t>(finding.rank) < lists.size() &&
                          finding.index < lists[static_cast<std::size_t>(finding.rank)].size();
    if (number <= kMostGrids && has_cell) {
      text += "\n" + order_grid(lists, {{finding.rank, finding.index}});
      while (text.back() == '\n') {
        text.pop_back();
      }
    }
  }
  throw Error(ErrorCode::kInvalidArgument, std::move(text)).at_rank(findings.front().rank);
}

void validate(const Schedule& schedule) {
  check_parts(schedule);
  validate(schedule, plan_of_positions(schedule), chain_links(schedule.num_stages));
}

void validate(const Schedule& schedule, const Plan& plan, const std::vector<StageLink>& links) {
  check_parts(schedule);
  const int64_t shown = representative_steps(schedule);  // refuses absurd numbers of any kind
  const int64_t num_steps = schedule.flush ? 1 : shown;
  const int64_t num_microbatches = num_steps * schedule.num_microbatches;
  const ActionLists bare = unroll(schedule, num_steps);
  throw_findings(find_faults(bare, schedule.stage_ranks, num_microbatches), bare, schedule.name);
  const LoweredSchedule lowered = lower(schedule, plan, num_steps, links);
  throw_findings(find_faults(lowered), lowered.ranks, schedule.name);
}

}  // namespace millrace
