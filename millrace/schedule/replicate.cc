#include "millrace/schedule/replicate.h"

#include <fmt/format.h>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// The same action of copy k.
Action moved(Action action, const Schedule& schedule, int copies, int k) {
  const int64_t size = schedule.num_microbatches;
  const int64_t step = action.first / size;
  if (action.first < 0 || action.last / size != step) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: {} cannot be copied, as its microbatches lie in several "
                            "steps of {}",
                            schedule.name, to_string(action), size));
  }
  const int64_t offset = (step * (copies - 1) + k) * size;
  action.first += offset;
  action.last += offset;
  return action;
}

}  // namespace

Schedule replicate(const Schedule& schedule, int copies) {
  if (copies < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected at least one copy, found {}", schedule.name, copies));
  }
  Schedule result = schedule;
  result.num_ranks *= copies;
  result.num_microbatches *= copies;
  result.period_microbatches *= copies;
  for (ActionLists Schedule::*part :
       {&Schedule::prologue, &Schedule::period, &Schedule::epilogue}) {
    ActionLists& lists = result.*part;
    lists.clear();
    for (int k = 0; k < copies; ++k) {
      for (const ActionList& list : schedule.*part) {
        ActionList& copy = lists.emplace_back();
        copy.reserve(list.size());
        for (const Action& action : list) {
          copy.push_back(moved(action, schedule, copies, k));
        }
      }
    }
  }
  for (std::vector<int>& positions : result.stage_ranks) {
    const std::vector<int> own = positions;
    for (int k = 1; k < copies; ++k) {
      for (const int position : own) {
        positions.push_back(position + k * schedule.num_ranks);
      }
    }
  }
  return result;
}

}  // namespace millrace
