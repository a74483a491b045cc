// The registry of schedules and what a builtin is made of. One file a schedule under builtin/, one
// line in builtin.def; it then appears in `millrace list`, in the docs table and in the property
// tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"

namespace millrace {

// What a builtin's functions get: P ranks and, with a flush, M microbatches a step for each replica
// of the most replicated stage (1 without a flush).
struct ScheduleConfig {
  int num_ranks = 1;
  int num_microbatches = 1;
  std::vector<int> replicas{};  // of each stage, summing to num_ranks; empty: one stage a rank

  int num_stages() const;
  int replicas_of(int stage) const;
  // Ranks of the stages from `stage` on.
  int ranks_from(int stage) const;
  // Microbatches of a step over all replicas: M x the largest number of replicas.
  int num_parts() const;
};

// The shape of a plan: its replicas and microbatches.
ScheduleConfig schedule_config(const Plan& plan);

// Closed forms of the paper in slots (forward f, backward b), for tests, `millrace list` and the
// report.
struct SlotFormula {
  double window_slots = 0;  // makespan of one step with a flush; of the steady period without
  double idle_slots = 0;    // over all ranks, inside that window
};

// The registry's entry. All functions are pure.
struct ScheduleBuiltin {
  // Action lists, stage placement, prologue/period/epilogue. Only called when offers() is empty.
  Schedule (*make)(const ScheduleConfig&);
  // The reason why this (P, M) is refused, or nothing when it is offered.
  std::optional<std::string> (*offers)(const ScheduleConfig&);
  // Weight policies that fit, the default first.
  std::vector<std::string> (*policies)();
  // Closed form for forward/backward of `f`/`b` slots; of a config without replicas.
  SlotFormula (*formula)(const ScheduleConfig&, double f, double b);
  // Most microbatches whose F ran and whose B has not, on each rank.
  std::vector<int> (*peak_stash)(const ScheduleConfig&);
  // The formula in words, with its source: for `millrace list schedules`.
  const char* formula_text;
};

struct ScheduleEntry {
  std::string name;
  std::string text;
  const ScheduleBuiltin* builtin;
};

const std::vector<ScheduleEntry>& schedules();
// Throws Error(kInvalidArgument) with the nearest known name.
const ScheduleEntry& find_schedule(const std::string& name);

// make() after the checks: kUnsupported with the schedule's own reason when it does not offer (P,
// M); `policy` empty means the default; an unfitting policy is refused, naming those that fit.
Schedule make_schedule(const std::string& name, const ScheduleConfig& config,
                       const std::string& policy = "");

}  // namespace millrace
