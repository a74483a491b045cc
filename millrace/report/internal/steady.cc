#include "millrace/report/internal/steady.h"

#include <algorithm>
#include <vector>

namespace millrace::internal {
namespace {

// The rank whose updates count the steps: of those with events, the first of the lowest stage.
const RankTrace* reference_rank(const Trace& trace) {
  const RankTrace* best = nullptr;
  for (const RankTrace& rank : trace.ranks) {
    if (!rank.events.empty() && (best == nullptr || rank.stages < best->stages)) {
      best = &rank;
    }
  }
  return best;
}

// Starts of the steps, and the end of the last one.
std::vector<double> step_borders(const RankTrace& rank) {
  std::vector<double> borders;
  bool between_steps = true;
  double last_update_end_s = 0;
  for (const TraceEvent& event : rank.events) {
    if (event.action.kind == ActionKind::kStep) {
      between_steps = true;
      last_update_end_s = event.end_s;
    } else if (between_steps && is_compute(event.action.kind)) {
      borders.push_back(event.start_s);
      between_steps = false;
    }
  }
  if (between_steps && !borders.empty()) {
    borders.push_back(last_update_end_s);
  }
  return borders;
}

}  // namespace

TimeWindow whole_trace(const Trace& trace) {
  TimeWindow window;
  bool any = false;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      window.start_s = any ? std::min(window.start_s, event.start_s) : event.start_s;
      window.end_s = any ? std::max(window.end_s, event.end_s) : event.end_s;
      any = true;
    }
  }
  return window;
}

TimeWindow steady_window(const Trace& trace, int64_t num_steps) {
  TimeWindow window = whole_trace(trace);
  const RankTrace* rank = reference_rank(trace);
  if (rank == nullptr) {
    return window;
  }
  const std::vector<double> borders = step_borders(*rank);
  if (borders.size() < 2) {
    return window;
  }
  const auto count = static_cast<int64_t>(borders.size()) - 1;
  window.num_steps = std::clamp<int64_t>(num_steps, 1, count);
  if (window.num_steps == count) {
    return window;  // all of it, other stages' drain included
  }
  // Never the first step, if there is a choice: it pays for what is set up once.
  window.first_step = std::max<int64_t>(1, (count - window.num_steps) / 2);
  const auto first = static_cast<std::size_t>(window.first_step);
  window.start_s = borders[first];
  window.end_s = borders[first + static_cast<std::size_t>(window.num_steps)];
  return window;
}

std::size_t num_events(const Trace& trace) {
  std::size_t count = 0;
  for (const RankTrace& rank : trace.ranks) {
    count += rank.events.size();
  }
  return count;
}

}  // namespace millrace::internal
