// The schedule language: small text files (.sched) that say where stages stand and in which order
// their work runs, made into entries like those of the registry. A schedule's name that ends in
// .sched is such a file wherever schedules are named. docs/schedule-language.md has the grammar.
// The idea is that of "FlexPipe: A Flexible Programmable Pipeline Parallelism Framework for
// Efficient DNN Training" (Jiang et al., arXiv 2510.05112); the form is our own.
#pragma once

#include <memory>
#include <string>

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace {

// A schedule from a file: its entry points into `builtin`, so it stays where it is.
struct WrittenSchedule {
  ScheduleBuiltin builtin;
  ScheduleEntry entry;  // named by the file
};

// Throws Error(kBadFile) that names line and column for text that does not parse. Making a schedule
// of it throws Error(kInvalidArgument), likewise with line and column, when the order leaves
// something out, deadlocks or goes out of range at that size, and Error(kUnsupported) for an
// operation that nothing executes yet.
std::unique_ptr<WrittenSchedule> written_schedule(const std::string& text, const std::string& file);

// Whether a schedule's name means a file: it ends in .sched.
bool is_schedule_file(const std::string& name);

// The entry of a file, which is read each time; it lives as long as the program. Thread-safe.
const ScheduleEntry& schedule_of_file(const std::string& path);

// The schedule with every action written out, for its own size alone; reads back to the same lists.
// Throws Error(kUnsupported) without a flush and where stages have different numbers of positions.
std::string schedule_text(const Schedule& schedule, const std::string& text = "");

}  // namespace millrace
