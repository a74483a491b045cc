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
  // Reductions that a rule started and awaited later, which ran one after another beside the events
  // above: a REDUCE each, from when the rule asked for it until it was done here. Neither their
  // time nor their bytes are in the totals: the REDUCE or STEP that awaited them has what of it was
  // waited.
  std::vector<TraceEvent> beside;
  // Where the rank was. Ranks of one process have one clock, the trace's; processes of one host
  // started their traces at `origin_s` of the host's clock (0: unknown).
  int process = 0;
  std::string host;
  double origin_s = 0;
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

// The end of an update of the first stage, which applied so many steps.
struct StepEnd {
  double end_s = 0;
  int64_t num_steps = 1;
};
// A step's seconds: the median, over all stretches of up to eight successive updates within a
// segment, of a stretch's seconds a step. Without a flush updates come in a rhythm of short and
// long ones, whose median is no period. 0 where no segment has two updates.
double typical_step_s(const std::vector<std::vector<StepEnd>>& segments);

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
