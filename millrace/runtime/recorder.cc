#include "millrace/runtime/recorder.h"

#include <algorithm>

namespace millrace {

Recorder::Recorder(int rank, int stage, double origin_s, std::size_t max_events)
    : origin_s_(origin_s), max_events_(max_events) {
  trace_.rank = rank;
  trace_.stage = stage;
  trace_.events.reserve(std::min<std::size_t>(max_events, 1U << 14U));
}

void Recorder::add(const Action& action, double start_s, double end_s, double wait_s,
                   int64_t bytes) {
  const double duration = end_s - start_s;
  trace_.wait_s += wait_s;
  if (is_compute(action.kind)) {
    trace_.compute_s += duration - wait_s;
  } else if (action.kind == ActionKind::kStep) {
    trace_.update_s += duration - wait_s;
  } else {
    trace_.communicate_s += duration - wait_s;
  }
  if (trace_.events.size() < max_events_) {
    trace_.events.push_back({action, start_s - origin_s_, end_s - origin_s_, wait_s, bytes});
  } else {
    complete_ = false;
  }
}

void Recorder::step_done(double end_s, int64_t num_steps) {
  step_ends_.push_back({end_s - origin_s_, num_steps});
}

Trace join_traces(const std::vector<const Recorder*>& recorders,
                  const std::vector<int64_t>& segment_starts) {
  Trace trace;
  trace.source = "measured";
  double first = 0;
  double last = 0;
  bool any = false;
  for (const Recorder* recorder : recorders) {
    trace.ranks.push_back(recorder->trace());
    trace.complete = trace.complete && recorder->complete();
    const auto& events = recorder->trace().events;
    if (!events.empty()) {
      first = any ? std::min(first, events.front().start_s) : events.front().start_s;
      last = any ? std::max(last, events.back().end_s) : events.back().end_s;
      any = true;
    }
    if (!recorder->step_ends().empty()) {
      last = std::max(last, recorder->step_ends().back().end_s);
    }
  }
  trace.window_s = any ? last - first : 0;
  for (const Recorder* recorder : recorders) {
    if (recorder->trace().stage != 0) {
      continue;
    }
    const std::vector<Recorder::StepEnd>& ends = recorder->step_ends();
    std::vector<double> durations;
    int64_t done = 0;  // steps before this update
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const bool starts_segment =
          std::find(segment_starts.begin(), segment_starts.end(), done) != segment_starts.end();
      if (i > 0 && !starts_segment) {
        durations.push_back((ends[i].end_s - ends[i - 1].end_s) /
                            static_cast<double>(ends[i].num_steps));
      }
      done += ends[i].num_steps;
    }
    trace.num_steps = done;
    if (!durations.empty()) {
      const auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
      std::nth_element(durations.begin(), middle, durations.end());
      trace.step_s = *middle;
    } else if (ends.size() == 1) {
      trace.step_s = trace.window_s;
    }
    break;
  }
  return trace;
}

}  // namespace millrace
