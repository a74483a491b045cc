#include "millrace/schedule/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

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

int ScheduleConfig::num_stages() const {
  return replicas.empty() ? num_ranks : static_cast<int>(replicas.size());
}

int ScheduleConfig::replicas_of(int stage) const {
  return replicas.empty() ? 1 : replicas[static_cast<std::size_t>(stage)];
}

int ScheduleConfig::ranks_from(int stage) const {
  return replicas.empty() ? num_ranks - stage
                          : std::accumulate(replicas.begin() + stage, replicas.end(), 0);
}

int ScheduleConfig::num_parts() const {
  return num_microbatches *
         (replicas.empty() ? 1 : *std::max_element(replicas.begin(), replicas.end()));
}

ScheduleConfig schedule_config(const Plan& plan) {
  ScheduleConfig config;
  config.num_ranks = plan.num_used_ranks();
  config.num_microbatches = plan.microbatches;
  for (const PlanStage& stage : plan.stages) {
    config.replicas.push_back(static_cast<int>(stage.ranks.size()));
  }
  return config;
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
  const bool replicas_fit =
      config.replicas.empty() ||
      (config.ranks_from(0) == config.num_ranks &&
       std::all_of(config.replicas.begin(), config.replicas.end(), [](int r) { return r >= 1; }));
  if (!replicas_fit) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected at least one replica of every stage, {} ranks in "
                    "all, found replicas {}",
                    name, config.num_ranks, fmt::join(config.replicas, ", ")));
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
