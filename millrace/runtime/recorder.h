// Recorder: one rank's measured events and totals. Memory is reserved up front; beyond the limit
// events are counted but not kept. One object a rank, used from that rank's thread; read after the
// rank is done.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/core/trace.h"

namespace millrace {

class Recorder {
 public:
  // `origin_s`: monotonic_s() at the trace's start, the same on every rank of a process.
  Recorder(int rank, int stage, double origin_s, std::size_t max_events);

  void add(const Action& action, double start_s, double end_s, double wait_s, int64_t bytes);

  // Marks the end of an update that applies `num_steps` steps, for step times.
  void step_done(double end_s, int64_t num_steps);

  const RankTrace& trace() const { return trace_; }
  bool complete() const { return complete_; }
  struct StepEnd {
    double end_s = 0;
    int64_t num_steps = 1;
  };
  const std::vector<StepEnd>& step_ends() const { return step_ends_; }

 private:
  RankTrace trace_;
  double origin_s_;
  std::size_t max_events_;
  bool complete_ = true;
  std::vector<StepEnd> step_ends_;
};

// Joins the ranks' records. step_s is the median time between successive step ends of the first
// stage, over segments of `segment_steps` steps (a gap between segments, such as an evaluation, is
// not a step).
Trace join_traces(const std::vector<const Recorder*>& recorders,
                  const std::vector<int64_t>& segment_starts);

}  // namespace millrace
