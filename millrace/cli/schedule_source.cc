#include "millrace/cli/schedule_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/schedule/language/language.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/validate.h"
#include "millrace/sim/simulate.h"

namespace millrace::cli {
namespace {

// Actions that one command will make, check and draw; above, memory rather than time runs out.
constexpr int64_t kMostActions = 4'000'000;

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

void check_one_source(const ScheduleSource& source) {
  std::vector<std::string> given;
  for (const auto& [name, value] :
       {std::pair("a plan file", &source.plan), std::pair("--name", &source.name),
        std::pair("--file", &source.file)}) {
    if (!value->empty()) {
      given.emplace_back(name);
    }
  }
  if (given.empty()) {
    throw wrong("give a plan file, or --name NAME --ranks N, or --file FILE");
  }
  if (given.size() > 1) {
    throw wrong(fmt::format("{} exclude each other; give one", join(given, " and ")));
  }
  const bool written = is_schedule_file(source.file);
  if (source.name.empty() && !written && (source.ranks > 0 || source.chunks > 0)) {
    throw wrong(fmt::format("{} goes with --name or a .sched file; {} says how many there are",
                            source.ranks > 0 ? "--ranks" : "--chunks", given[0]));
  }
  if (!source.file.empty() && !written && !source.policy.empty()) {
    throw wrong("--policy goes with --name or a plan; a schedule's file names its own policy");
  }
}

void check_size(int64_t ranks, int64_t microbatches) {
  if (microbatches > kMostActions / (2 * ranks)) {
    throw wrong(
        fmt::format("{} ranks x {} microbatches are too many to show; the limit is {} "
                    "forwards and backwards; use fewer",
                    ranks, microbatches, kMostActions));
  }
}

// A builtin of this shape. Where it takes only one microbatch a step and has no flush, the
// microbatches may `mean_minibatches`.
Schedule make_named(ChosenSchedule& chosen, const std::string& name, ScheduleConfig config,
                    bool mean_minibatches, const std::string& policy) {
  Schedule schedule;
  try {
    schedule = make_schedule(name, config, policy);
  } catch (const Error& error) {
    config.num_microbatches = 1;
    if (error.file() || !mean_minibatches || chosen.builtin->offers(config)) {
      throw;
    }
    schedule = make_schedule(name, config, policy);
    if (schedule.flush) {
      throw;
    }
  }
  const bool straight = std::all_of(config.replicas.begin(), config.replicas.end(),
                                    [](int replicas) { return replicas == 1; });
  if (straight && config.copies == 1) {
    config.replicas.clear();
    config.chunks = config.chunks == 0 ? chosen.builtin->chunks : config.chunks;
    chosen.shape = config;
  }
  return schedule;
}

void from_plan(const ScheduleSource& source, ChosenSchedule& chosen) {
  Plan plan = plan_from(read_document(source.plan));
  try {
    const ScheduleEntry& entry = find_schedule(plan.schedule);
    chosen.builtin = entry.builtin;
    ScheduleConfig config = schedule_config(plan);
    const int64_t microbatches = source.microbatches.value_or(plan.microbatches);
    check_size(plan.num_stages(), microbatches * plan.max_replicas());
    // The plan's own number of microbatches must fit; the one given may mean minibatches.
    config.num_microbatches = static_cast<int>(microbatches);
    chosen.schedule =
        make_named(chosen, entry.name, config, source.microbatches.has_value(), source.policy);
    if (chosen.schedule.flush || chosen.schedule.num_microbatches > 1) {
      plan.microbatches = static_cast<int>(microbatches);
    }
  } catch (Error& error) {
    throw error.in_file(source.plan);
  }
  chosen.plan = std::move(plan);
}

// A builtin, or a file in the schedule language, which may be written for one size alone.
void from_name(const std::string& name, const ScheduleSource& source, ChosenSchedule& chosen) {
  chosen.builtin = find_schedule(name).builtin;
  const int ranks = source.ranks > 0 ? source.ranks : chosen.builtin->ranks;
  if (ranks < 1) {
    throw wrong(fmt::format("{} needs --ranks N as well",
                            source.name.empty() ? "--file FILE.sched" : "--name"));
  }
  // Twice the ranks is enough for each schedule to show its steady state.
  const int64_t by_default =
      chosen.builtin->microbatches > 0 ? chosen.builtin->microbatches : 2 * int64_t{ranks};
  const int64_t microbatches = source.microbatches.value_or(by_default);
  check_size(int64_t{ranks} * std::max(source.chunks, 1), microbatches);
  const ScheduleConfig config{.num_ranks = ranks,
                              .num_microbatches = static_cast<int>(microbatches),
                              .chunks = source.chunks};
  chosen.schedule = make_named(chosen, name, config, true, source.policy);
}

void from_file(const ScheduleSource& source, ChosenSchedule& chosen) {
  chosen.schedule = schedule_from(read_document(source.file));
  if (chosen.schedule.flush && source.microbatches) {
    throw wrong("--microbatches: a schedule with a flush names its own number")
        .in_file(source.file);
  }
  check_size(chosen.schedule.num_ranks, source.microbatches.value_or(1));
}

double parse_slot(std::string_view text, const std::string& whole) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value <= 0) {
    throw wrong(fmt::format("--slots: expected two numbers above 0 as F:B, say 1:2, found {}",
                            in_quotes(whole)));
  }
  return value;
}

}  // namespace

Slots parse_slots(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string_view view = text;
  return {parse_slot(view.substr(0, colon), text),
          parse_slot(colon == std::string::npos ? "" : view.substr(colon + 1), text)};
}

ChosenSchedule choose_schedule(const ScheduleSource& source, Purpose purpose) {
  check_one_source(source);
  ChosenSchedule chosen;
  if (!source.plan.empty()) {
    from_plan(source, chosen);
  } else if (!source.name.empty()) {
    from_name(source.name, source, chosen);
  } else if (is_schedule_file(source.file)) {
    from_name(source.file, source, chosen);
  } else {
    from_file(source, chosen);
  }
  const Schedule& schedule = chosen.schedule;
  if (!schedule.flush) {
    const int64_t round = schedule.period_microbatches / schedule.num_microbatches;
    // For a picture: filled, as long again, and drained.
    const int64_t parts = schedule.num_microbatches;
    const int64_t shown = 2 * ((schedule.num_ranks + parts - 1) / parts + 1);
    chosen.num_steps = purpose == Purpose::kSimulate ? steady_steps(schedule.num_ranks, round)
                                                     : (shown + round - 1) / round * round;
    if (schedule.num_microbatches == 1) {
      chosen.num_steps = source.microbatches.value_or(chosen.num_steps);
    }
    check_size(schedule.num_stages, chosen.num_steps * schedule.num_microbatches);
  }
  try {
    if (chosen.plan) {
      validate(schedule, *chosen.plan, chain_links(chosen.plan->num_stages()));
    } else {
      validate(schedule);
    }
    chosen.lowered = chosen.plan ? lower(schedule, *chosen.plan, chosen.num_steps)
                                 : lower(schedule, chosen.num_steps);
  } catch (Error& error) {
    if (!error.file() && !(source.plan + source.file).empty()) {
      error.in_file(source.plan + source.file);
    }
    throw;
  }
  return chosen;
}

std::string describe(const ChosenSchedule& chosen) {
  const Schedule& schedule = chosen.schedule;
  const auto number = [](int64_t count, const char* one, const char* many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
  };
  const std::string parts =
      schedule.flush
          ? number(schedule.num_microbatches, "microbatch a step", "microbatches a step")
          : number(chosen.num_steps, "minibatch", "minibatches, never drained in between") +
                (schedule.num_microbatches > 1
                     ? fmt::format(", {} microbatches each", schedule.num_microbatches)
                     : "");
  const auto ranks = static_cast<int64_t>(chosen.lowered.ranks.size());
  return fmt::format("schedule {}, policy {}: {}, {}, {}", schedule.name, schedule.policy,
                     number(ranks, "rank", "ranks"), number(schedule.num_stages, "stage", "stages"),
                     parts);
}

}  // namespace millrace::cli
