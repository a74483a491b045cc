// From a parsed .sched file to action lists of one size. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "millrace/core/schedule.h"
#include "millrace/schedule/language/syntax.h"
#include "millrace/schedule/registry.h"

namespace millrace::language {

// V where the config leaves it open.
int default_chunks(const Program& program);
// Why the file does not offer this size, or nothing.
std::optional<std::string> refused(const Program& program, const ScheduleConfig& config);
// Throws what WrittenSchedule says.
Schedule build(const Program& program, const ScheduleConfig& config);
// The ranks of each stage, likewise.
std::vector<std::vector<int>> placement_of(const Program& program, const ScheduleConfig& config);

}  // namespace millrace::language
