#include "millrace/schedule/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/language/language.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/replicate.h"
#include "millrace/schedule/split.h"

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
  if (is_schedule_file(name)) {
    return schedule_of_file(name);
  }
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
  return num_microbatches * copies *
         (replicas.empty() ? 1 : *std::max_element(replicas.begin(), replicas.end()));
}

ScheduleConfig schedule_config(const Plan& plan) {
  if (plan.split_parts > 1) {
    return schedule_config(plan_of_part(plan, 0));
  }
  const ScheduleBuiltin& builtin = *find_schedule(plan.schedule).builtin;
  ScheduleConfig config;
  config.num_ranks = plan.num_used_ranks();
  config.num_microbatches = plan.microbatches;
  int places = 0;
  bool equal = true;
  for (const PlanStage& stage : plan.stages) {
    places += static_cast<int>(stage.ranks.size());
    equal = equal && stage.ranks.size() == plan.stages.front().ranks.size();
    config.replicas.push_back(static_cast<int>(stage.ranks.size()));
  }
  if (builtin.deals) {
    if (places != config.num_ranks) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("schedule {} runs one stage a rank; the plan has {} stages in {} "
                              "places on {} ranks; give every stage ranks of its own",
                              plan.schedule, plan.num_stages(), places, config.num_ranks));
    }
    return config;
  }
  config.replicas.clear();
  const int used = std::max(config.num_ranks, 1);
  if (builtin.ranks > 0) {
    // Its ranks may hold different numbers of stages.
    config.copies = used / builtin.ranks;
    config.num_ranks = builtin.ranks;
    config.chunks = builtin.chunks;
    if (plan.num_stages() != builtin.stages || config.copies * config.num_ranks != used) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("schedule {} is written for {} stages on {} ranks; the plan has {} "
                      "stages on {} ranks",
                      plan.schedule, builtin.stages, builtin.ranks, plan.num_stages(), used));
    }
    return config;
  }
  const int held = places / used;  // stages a rank, of all directions
  config.chunks = held / builtin.directions;
  config.num_ranks = held == 0 ? 0 : plan.num_stages() * builtin.directions / held;
  config.copies = config.num_ranks == 0 ? 0 : used / config.num_ranks;
  if (!equal || config.chunks * config.num_ranks != plan.num_stages() ||
      config.copies * config.num_ranks != used) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {} runs in equal copies of a pipeline whose ranks each hold "
                            "the same number of stages{}; the plan has {} stages in {} places on "
                            "{} ranks; give every stage as many ranks and every rank as many "
                            "stages",
                            plan.schedule,
                            builtin.directions > 1 ? ", every stage on two ranks of each copy" : "",
                            plan.num_stages(), places, used));
  }
  return config;
}

ScheduleConfig schedule_config(const ParallelConfig& parallel) {
  const ScheduleBuiltin& builtin = *find_schedule(parallel.schedule).builtin;
  const auto refuse = [&](const char* key, const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {} runs in equal copies of one pipeline: {}",
                            parallel.schedule, text))
        .at_key(std::string("parallel.") + key);
  };
  const std::vector<int>& replicas = parallel.replicas;
  if (std::any_of(replicas.begin(), replicas.end(),
                  [&](int count) { return count != replicas.front(); })) {
    refuse("replicas", "give one number of replicas for all stages");
  }
  ScheduleConfig config;
  config.num_microbatches = parallel.microbatches;
  config.chunks = parallel.chunks.value_or(builtin.chunks);
  // A copy of P ranks has P x chunks stages.
  const int stages = parallel.stages.value_or(0);
  if (builtin.ranks > 0) {
    config.chunks = builtin.chunks;
    config.num_ranks = builtin.ranks;
    config.copies = replicas.empty() ? 1 : replicas.front();
    if (stages != 0 && stages != builtin.stages) {
      refuse("stages",
             fmt::format("it is written for {} stages, found {}", builtin.stages, stages));
    }
    if (config.num_ranks * config.copies > parallel.workers) {
      refuse("workers", fmt::format("{} copies of {} ranks do not fit on {} workers", config.copies,
                                    config.num_ranks, parallel.workers));
    }
    return config;
  }
  if (stages % config.chunks != 0) {
    refuse("stages", fmt::format("{} stages are not {} a rank; leave stages out, or set another "
                                 "number of chunks",
                                 stages, config.chunks));
  }
  if (!replicas.empty()) {
    config.copies = replicas.front();
  } else if (stages == 0 && parallel.plan == "data-parallel") {
    config.copies = parallel.workers;  // each with all layers, in so many units
  } else if (stages > 0) {
    config.copies = std::max(1, parallel.workers / (stages / config.chunks));
  }
  config.num_ranks = stages > 0 ? stages / config.chunks : parallel.workers / config.copies;
  if (config.num_ranks < 1 || config.num_ranks * config.copies > parallel.workers) {
    refuse(replicas.empty() ? "stages" : "replicas",
           fmt::format("{} copies of {} ranks do not fit on {} workers", config.copies,
                       std::max(config.num_ranks, 1), parallel.workers));
  }
  return config;
}

bool has_flush(const ScheduleBuiltin& builtin) {
  return find_policy(builtin.policies().front()).needs_flush;
}

namespace {

// The config as the builtin sees it: sizes sane, chunks filled in, one copy.
ScheduleConfig checked_config(const ScheduleEntry& entry, const ScheduleConfig& config) {
  if (config.num_ranks < 1 || config.num_microbatches < 1 || config.copies < 1 ||
      config.chunks < 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("schedule {}: expected at least one rank, microbatch, chunk and copy, found {} "
                    "ranks, {} microbatches, {} chunks and {} copies; set each to 1 or more",
                    entry.name, config.num_ranks, config.num_microbatches, config.chunks,
                    config.copies));
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
                    entry.name, config.num_ranks, fmt::join(config.replicas, ", ")));
  }
  if (!config.replicas.empty() && !entry.builtin->deals) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schedule {} runs in equal copies only; give every stage as many "
                            "replicas",
                            entry.name));
  }
  ScheduleConfig shape = config;
  shape.chunks = config.chunks == 0 ? entry.builtin->chunks : config.chunks;
  shape.copies = 1;
  if (shape.chunks != 1 && entry.builtin->deals) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} holds one stage a rank, found chunks = {}; set chunks = 1, "
                    "or take 1f1b-interleaved or breadth-first",
                    entry.name, shape.chunks));
  }
  if (const std::optional<std::string> reason = entry.builtin->offers(shape)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("schedule {}: {}", entry.name, *reason));
  }
  return shape;
}

}  // namespace

std::optional<std::string> why_refused(const ScheduleEntry& entry, const ScheduleConfig& config) {
  try {
    checked_config(entry, config);
  } catch (const Error& error) {
    return error.message();
  }
  return std::nullopt;
}

Schedule make_schedule(const std::string& name, const ScheduleConfig& config,
                       const std::string& policy) {
  const ScheduleEntry& entry = find_schedule(name);
  const ScheduleConfig shape = checked_config(entry, config);
  const std::vector<std::string> fitting = entry.builtin->policies();
  const std::string chosen = policy.empty() ? fitting.front() : find_policy(policy).name;
  if (std::find(fitting.begin(), fitting.end(), chosen) == fitting.end()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schedule {} does not take weight policy `{}`; choose one that fits: {}", name,
                    chosen, join(fitting, ", ")));
  }
  Schedule schedule = entry.builtin->make(shape);
  if (config.copies > 1) {
    schedule = replicate(schedule, config.copies);
  }
  schedule.policy = chosen;
  return schedule;
}

}  // namespace millrace
