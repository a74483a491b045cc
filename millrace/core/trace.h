// Trace: what ran when, on each rank; written alike by the runtime (measured) and the simulator
// (simulated). Read by report and by the prediction table. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/action.h"

namespace millrace {

// Seconds are since the trace's own start. `wait_s` is the part of [start_s, end_s) spent blocked
// on another rank.
struct TraceEvent {
  Action action;
  double start_s = 0;
  double end_s = 0;
  double wait_s = 0;
  int64_t bytes = 0;  // moved by a send, receive or reduce
  bool operator==(const TraceEvent&) const = default;
};

struct RankTrace {
  int rank = 0;
  std::vector<int> stages;         // that the rank holds, ascending; none when idle
  std::vector<TraceEvent> events;  // in order of start
  // Totals over the whole run, also of events beyond the recorded ones.
  double compute_s = 0;
  double communicate_s = 0;  // sends, receives and reduces, less their waits
  double wait_s = 0;
  double update_s = 0;
  bool operator==(const RankTrace&) const = default;
};

struct Trace {
  std::string source = "measured";  // or "simulated"
  int64_t num_steps = 0;            // steps that the totals cover
  double step_s = 0;                // makespan of a step with a flush; steady period without
  double window_s = 0;              // first start to last end over ranks
  bool complete = true;             // false when events beyond a limit were counted but not kept
  std::vector<RankTrace> ranks;
  bool operator==(const Trace&) const = default;
};

Trace trace_from(const Document& document);
Value to_value(const Trace& trace);

// Per step: mean over the ranks that hold the same stages of compute, communicate, wait and update
// seconds.
struct StageTimes {
  std::vector<int> stages;
  double compute_s = 0;
  double communicate_s = 0;
  double wait_s = 0;
  double update_s = 0;
};
std::vector<StageTimes> stage_times(const Trace& trace);

std::string describe_stages(const std::vector<int>& stages);  // "stage 0", "stages 0, 2", "idle"

}  // namespace millrace
