// What the files under builtin/ share: their declarations, drawn from builtin.def, and the two
// pieces that straight pipelines (stage s on position s) are made of. Pure functions.
#pragma once

#include <cstdint>

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace {

// A namespace of their own, because other kinds have entries of the same name (the planner
// `pipedream`).
namespace schedule_builtin {
#define SCHEDULE(name, symbol, text) extern const ScheduleBuiltin symbol;
#include "millrace/schedule/builtin.def"
#undef SCHEDULE
}  // namespace schedule_builtin

namespace internal {

// Name, sizes and placement of a straight pipeline; all action lists are there and empty.
Schedule straight_schedule(const char* name, const ScheduleConfig& config, bool flush);

// The order of one stage that runs `ahead` forwards before its first backward and then one backward
// after each forward, so that ahead = 0 is one microbatch at a time and ahead = num_microbatches
// all forwards first.
ActionList staggered_order(int stage, int64_t num_microbatches, int64_t ahead);

}  // namespace internal
}  // namespace millrace
