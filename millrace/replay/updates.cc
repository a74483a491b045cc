// Which updates a recording holds.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "millrace/replay/graph.h"
#include "millrace/replay/internal/first_stage.h"

namespace millrace {

using internal::ends_step;
using internal::first_stage_rank;

Updates updates_of(const Recording& recording, const Trace& trace) {
  Updates updates;
  const int rank = first_stage_rank(recording);
  if (rank < 0) {
    return updates;
  }
  std::vector<double> ends_s;
  for (const RecordedAction& each : recording.actions[static_cast<std::size_t>(rank)]) {
    if (ends_step(each)) {
      ends_s.push_back(each.end_s);
    }
  }
  updates.count = static_cast<int64_t>(ends_s.size());
  if (trace.complete) {
    updates.steps_each = trace.num_steps / updates.count;
  } else if (updates.count > 1 && trace.step_s > 0) {
    // The trace counts steps that it no longer shows.
    std::vector<double> periods;
    for (std::size_t i = 1; i < ends_s.size(); ++i) {
      periods.push_back(ends_s[i] - ends_s[i - 1]);
    }
    updates.steps_each = std::llround(median(periods) / trace.step_s);
  }
  updates.steps_each = std::max<int64_t>(updates.steps_each, 1);
  return updates;
}

Recording last_updates(Recording recording, int64_t most) {
  const int rank = first_stage_rank(recording);
  if (rank < 0) {
    return recording;
  }
  const std::vector<RecordedAction>& actions = recording.actions[static_cast<std::size_t>(rank)];
  double from_s = -std::numeric_limits<double>::infinity();
  int64_t seen = 0;
  for (auto each = actions.rbegin(); each != actions.rend(); ++each) {
    if (ends_step(*each) && ++seen > most) {
      from_s = each->end_s;
      break;
    }
  }
  for (std::vector<RecordedAction>& own : recording.actions) {
    std::erase_if(own, [from_s](const RecordedAction& each) { return each.start_s < from_s; });
  }
  return recording;
}

}  // namespace millrace
