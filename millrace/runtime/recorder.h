// Recorder: one rank's measured events and totals. Memory is reserved up front; beyond the limit
// events are counted but not kept. One object a rank, used from that rank's thread; read after the
// rank is done, but for first_steps().
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/core/trace.h"

namespace millrace {

// What one rank did in a step, on average over those that first_steps() covers.
struct RankSteps {
  RankTrace times;            // seconds a step; no events
  std::vector<StepEnd> ends;  // of its updates, and of the one before them
  int64_t steps_before = 0;   // all of these

  // typical_step_s() of them; `segment_starts` as join_traces() takes them.
  double step_s(const std::vector<int64_t>& segment_starts) const;
};

class Recorder {
 public:
  // Until here a run is new to allocator, caches and files; by here its times are known.
  static constexpr int64_t kWarmSteps = 5;
  static constexpr int64_t kFirstSteps = 20;

  // `origin_s`: monotonic_s() at the trace's start, the same on every rank of a process.
  Recorder(int rank, std::vector<int> stages, double origin_s, std::size_t max_events);

  void add(const Action& action, double start_s, double end_s, double wait_s, int64_t bytes);

  // A reduction that went on beside the rank's actions.
  void add_beside(const Action& action, double start_s, double end_s, double wait_s, int64_t bytes);

  // Marks the end of an update that applies `num_steps` steps, for step times.
  void step_done(double end_s, int64_t num_steps);

  // Of the steps after kWarmSteps up to kFirstSteps; nothing before the rank has done these. From
  // any thread, also while the rank works.
  std::optional<RankSteps> first_steps() const;

  const RankTrace& trace() const { return trace_; }
  bool complete() const { return complete_; }
  const std::vector<StepEnd>& step_ends() const { return step_ends_; }

 private:
  RankTrace totals() const;  // `trace_` without events

  RankTrace trace_;
  double origin_s_;
  std::size_t max_events_;
  bool complete_ = true;
  std::vector<StepEnd> step_ends_;
  int64_t steps_done_ = 0;
  int64_t warm_steps_ = 0;     // done when `warm_` was noted, at least kWarmSteps; 0: not yet
  std::size_t warm_ends_ = 0;  // of step_ends_, then
  RankTrace warm_;             // totals then
  RankSteps first_;            // written once, before has_first_ is set
  std::atomic<bool> has_first_{false};
};

// Joins the ranks' records. step_s is typical_step_s() of the first stage, where an update ends
// with the last of the stage's replicas; where they made unequal ones, the first replica's count.
// `segment_starts`: the steps at which segments begin; what lies between two, such as an
// evaluation, is no step.
Trace join_traces(const std::vector<const Recorder*>& recorders,
                  const std::vector<int64_t>& segment_starts);

// One trace of what several processes measured, each its own ranks, from one origin. Steps are
// those of the process that holds the first stage.
Trace merge_traces(const std::vector<Trace>& parts);

}  // namespace millrace
