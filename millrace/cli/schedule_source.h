// What `schedule` and `simulate` work on: a plan file, a schedule's name or a schedule's file, made
// into one checked schedule and its complete actions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/cli/common/options.h"
#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace::cli {

// F and B in slots, as `--slots F:B` says. Both are finite and above 0.
struct Slots {
  double forward = 1;
  double backward = 2;
};
Slots parse_slots(const std::string& text);

struct ChosenSchedule {
  Schedule schedule;
  std::optional<Plan> plan;  // when it came from one
  // What the registry knows about it; null for a schedule from JSON.
  const ScheduleBuiltin* builtin = nullptr;
  // What that was asked for, where its closed forms hold: without replicas and copies.
  std::optional<ScheduleConfig> shape;
  int64_t num_steps = 1;  // 1 with a flush; without, the minibatches of the segment
  LoweredSchedule lowered;

  // Microbatches of the step, or minibatches of the segment.
  int64_t num_parts() const { return num_steps * schedule.num_microbatches; }
};

// What a schedule without a flush is shown for where --microbatches does not say how many
// minibatches: a picture, or the steady period.
enum class Purpose { kDraw, kSimulate };

// Exactly one of plan, name and file must be given. The schedule is validated. Throws what reading,
// making and lowering throw.
ChosenSchedule choose_schedule(const ScheduleSource& source, Purpose purpose);

// "schedule 1f1b, policy flush: 4 ranks, 4 stages, 8 microbatches"
std::string describe(const ChosenSchedule& chosen);

}  // namespace millrace::cli
