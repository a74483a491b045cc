#include "millrace/schedule/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/policy.h"

namespace millrace {

const std::vector<ScheduleEntry>& schedules() {
  static const std::vector<ScheduleEntry> entries = {
#define SCHEDULE(name, symbol, text) {name, text, &schedule_builtin::symbol},
#include "millrace/schedule/builtin.def"
#undef SCHEDULE
  };
  return entries;
}

const ScheduleEntry& find_schedule(const std::string& name) {
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown schedule `{}`{}; there are {}", name, did_you_mean(name, names),
                          join(names, ", ")));
}

Schedule make_schedule(const std::string& name, const ScheduleConfig& config,
                       const std::string& policy) {
  const ScheduleEntry& entry = find_schedule(name);
  if (config.num_ranks < 1 || config.num_microbatches < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected at least one rank and one microbatch, found {} ranks "
                    "and {} microbatches; set both to 1 or more",
                    name, config.num_ranks, config.num_microbatches));
  }
  if (const std::optional<std::string> reason = entry.builtin->offers(config)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("schedule {}: {}", name, *reason));
  }
  const std::vector<std::string> fitting = entry.builtin->policies();
  const std::string chosen = policy.empty() ? fitting.front() : find_policy(policy).name;
  if (std::find(fitting.begin(), fitting.end(), chosen) == fitting.end()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} does not take weight policy `{}`; choose one that fits: {}", name,
                    chosen, join(fitting, ", ")));
  }
  Schedule schedule = entry.builtin->make(config);
  schedule.policy = chosen;
  return schedule;
}

}  // namespace millrace
