// Where in a trace to look first: some whole steps from its middle, past warm-up and before the
// drain.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/core/trace.h"

namespace millrace::internal {

struct TimeWindow {
  double start_s = 0;
  double end_s = 0;
  int64_t first_step = 0;  // counted from 0 at the trace's begin
  int64_t num_steps = 0;   // 0 when the trace shows no update: the window is then the whole trace
  double length_s() const { return end_s - start_s; }
};

// First start to last end of all events; {0, 0} without events.
TimeWindow whole_trace(const Trace& trace);

// At most `num_steps` steps. A step begins where the first rank of the lowest stage starts
// computing after an update, so windows of a predicted and a measured trace begin at the same point
// of the schedule.
TimeWindow steady_window(const Trace& trace, int64_t num_steps);

std::size_t num_events(const Trace& trace);

}  // namespace millrace::internal
