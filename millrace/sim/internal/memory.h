// Bytes alive on a rank over a simulated run, from its actions' times and weight versions. Pure
// functions.
#pragma once

#include <vector>

#include "millrace/sim/internal/run_list.h"
#include "millrace/sim/simulate.h"

namespace millrace::internal {

struct RankMemory {
  MemoryUse peak;  // each part's own
  int peak_in_flight = 0;
  int peak_weight_versions = 0;
  std::vector<MemoryPoint> curve;  // sum of the parts
};

// Lifetimes are those that simulate() states. A rank without actions holds nothing.
RankMemory memory_of(const RankRun& run, const LoweredSchedule& lowered,
                     const std::vector<StageCost>& costs, int optimizer_buffers);

}  // namespace millrace::internal
