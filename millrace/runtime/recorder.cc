#include "millrace/runtime/recorder.h"

#include <algorithm>
#include <utility>

namespace millrace {

Recorder::Recorder(int rank, std::vector<int> stages, double origin_s, std::size_t max_events)
    : origin_s_(origin_s), max_events_(max_events) {
  trace_.rank = rank;
  trace_.stages = std::move(stages);
  trace_.origin_s = origin_s;
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

void Recorder::add_beside(const Action& action, double start_s, double end_s, double wait_s,
                          int64_t bytes) {
  if (trace_.beside.size() < max_events_) {
    trace_.beside.push_back({action, start_s - origin_s_, end_s - origin_s_, wait_s, bytes});
  } else {
    complete_ = false;
  }
}

void Recorder::step_done(double end_s, int64_t num_steps) {
  step_ends_.push_back({end_s - origin_s_, num_steps});
  steps_done_ += num_steps;
  if (warm_steps_ == 0 && steps_done_ >= kWarmSteps) {
    warm_steps_ = steps_done_;
    warm_ends_ = step_ends_.size();
    warm_ = totals();
  } else if (!has_first_ && steps_done_ >= kFirstSteps) {
    const auto steps = static_cast<double>(steps_done_ - warm_steps_);
    first_.times = totals();
    for (double RankTrace::*each : {&RankTrace::compute_s, &RankTrace::communicate_s,
                                    &RankTrace::wait_s, &RankTrace::update_s}) {
      first_.times.*each = (first_.times.*each - warm_.*each) / steps;
    }
    // From the end of the last warm one.
    first_.ends.assign(step_ends_.begin() + static_cast<std::ptrdiff_t>(warm_ends_) - 1,
                       step_ends_.end());
    first_.steps_before = warm_steps_ - first_.ends.front().num_steps;
    has_first_.store(true, std::memory_order_release);
  }
}

std::optional<RankSteps> Recorder::first_steps() const {
  if (!has_first_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  return first_;
}

RankTrace Recorder::totals() const {
  RankTrace totals;
  totals.rank = trace_.rank;
  totals.stages = trace_.stages;
  totals.compute_s = trace_.compute_s;
  totals.communicate_s = trace_.communicate_s;
  totals.wait_s = trace_.wait_s;
  totals.update_s = trace_.update_s;
  return totals;
}

namespace {

// Successive ends, the first of which comes after `steps_before` steps, segment by segment.
std::vector<std::vector<StepEnd>> by_segment(const std::vector<StepEnd>& ends, int64_t steps_before,
                                             const std::vector<int64_t>& segment_starts) {
  std::vector<std::vector<StepEnd>> segments;
  for (const StepEnd& end : ends) {
    const bool starts_segment = std::find(segment_starts.begin(), segment_starts.end(),
                                          steps_before) != segment_starts.end();
    if (segments.empty() || starts_segment) {
      segments.emplace_back();
    }
    segments.back().push_back(end);
    steps_before += end.num_steps;
  }
  return segments;
}

// The first stage's steps: each ends with the last of its replicas, where all have made the same
// ones; else (parts on demand, or a stop) those of the first replica.
std::vector<StepEnd> first_stage_steps(const std::vector<const Recorder*>& recorders) {
  std::vector<const std::vector<StepEnd>*> all;
  for (const Recorder* recorder : recorders) {
    const std::vector<int>& held = recorder->trace().stages;
    if (!held.empty() && held.front() == 0) {
      all.push_back(&recorder->step_ends());
    }
  }
  if (all.empty()) {
    return {};
  }
  std::vector<StepEnd> steps = *all.front();
  const bool alike = std::all_of(all.begin(), all.end(), [&](const auto* ends) {
    return std::equal(
        ends->begin(), ends->end(), steps.begin(), steps.end(),
        [](const StepEnd& a, const StepEnd& b) { return a.num_steps == b.num_steps; });
  });
  for (const std::vector<StepEnd>* ends : all) {
    for (std::size_t i = 0; alike && i < steps.size(); ++i) {
      steps[i].end_s = std::max(steps[i].end_s, (*ends)[i].end_s);
    }
  }
  return steps;
}

}  // namespace

Trace join_traces(const std::vector<const Recorder*>& recorders,
                  const std::vector<int64_t>& segment_starts) {
  Trace trace;
  trace.source = "measured";
  double first = 0;
  double last = 0;
  bool any = false;
  for (const Recorder* recorder : recorders) {
    trace.ranks.push_back(recorder->trace());
    // Several stages of a rank tell of theirs one after another.
    std::stable_sort(
        trace.ranks.back().beside.begin(), trace.ranks.back().beside.end(),
        [](const TraceEvent& a, const TraceEvent& b) { return a.start_s < b.start_s; });
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
  const std::vector<StepEnd> ends = first_stage_steps(recorders);
  for (const StepEnd& end : ends) {
    trace.num_steps += end.num_steps;
  }
  trace.step_s =
      ends.size() == 1 ? trace.window_s : typical_step_s(by_segment(ends, 0, segment_starts));
  return trace;
}

double RankSteps::step_s(const std::vector<int64_t>& segment_starts) const {
  return typical_step_s(by_segment(ends, steps_before, segment_starts));
}

Trace merge_traces(const std::vector<Trace>& parts) {
  Trace trace;
  trace.source = "measured";
  for (const Trace& part : parts) {
    trace.ranks.insert(trace.ranks.end(), part.ranks.begin(), part.ranks.end());
    trace.complete = trace.complete && part.complete;
    trace.window_s = std::max(trace.window_s, part.window_s);
    if (trace.num_steps == 0) {
      trace.num_steps = part.num_steps;
      trace.step_s = part.step_s;
    }
  }
  std::sort(trace.ranks.begin(), trace.ranks.end(),
            [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  return trace;
}

}  // namespace millrace
