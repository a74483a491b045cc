// The registry of schedules and what a builtin is made of. One file a schedule under builtin/, one
// line in builtin.def; it then appears in `millrace list`, in the docs table and in the property
// tests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/run_config.h"
#include "millrace/core/schedule.h"

namespace millrace {

// What a builtin's functions get: P ranks, M microbatches a step for each replica of the most
// replicated stage (1 without a flush, unless the schedule says otherwise) and V chunks.
struct ScheduleConfig {
  int num_ranks = 1;
  int num_microbatches = 1;
  // Of each stage, summing to num_ranks; empty: one. Only for schedules that deal microbatches to
  // replicas themselves (ScheduleBuiltin::deals).
  std::vector<int> replicas{};
  // Stages that a rank holds of each direction; 0: as many as the schedule takes by default.
  int chunks = 0;
  // Equal copies of the whole pipeline, each on num_ranks ranks of its own, that share every step;
  // made by make_schedule, builtins see 1.
  int copies = 1;

  // Of a schedule that deals: one stage a rank, or a replica of one.
  int num_stages() const;
  int replicas_of(int stage) const;
  // Ranks of the stages from `stage` on.
  int ranks_from(int stage) const;
  // Microbatches of a step over all replicas or copies.
  int num_parts() const;
};

// The shape of a plan for its schedule. Throws Error(kInvalidArgument) when its stages and ranks
// are not those of whole copies of that schedule's placement.
ScheduleConfig schedule_config(const Plan& plan);
// The shape that run.toml asks of a schedule that does not deal: as many equal copies as `replicas`
// says, else as fit where `stages` is set, else one on all workers, or with plan = "data-parallel"
// one on each. Throws Error(kInvalidArgument) at the key that does not fit.
ScheduleConfig schedule_config(const ParallelConfig& parallel);

// Closed forms of the paper in slots (forward f, backward b), for tests, `millrace list` and the
// report.
struct SlotFormula {
  double window_slots = 0;  // makespan of one step with a flush; of the steady period without
  double idle_slots = 0;    // over all ranks, inside that window
  bool exact = true;        // false: an upper bound of both
};

// Most (stage, microbatch) pairs whose F ran and whose B (W where the backward is split) has not.
struct StashFormula {
  std::vector<int> ranks;
  bool exact = true;  // false: upper bounds
};

// The registry's entry, or one made of a file. All functions are pure.
struct ScheduleBuiltin {
  // Action lists, stage placement, prologue/period/epilogue. Only called when offers() is empty.
  std::function<Schedule(const ScheduleConfig&)> make;
  // The reason why this (P, M, V) is refused, or nothing when it is offered.
  std::function<std::optional<std::string>(const ScheduleConfig&)> offers;
  // Weight policies that fit, the default first.
  std::function<std::vector<std::string>()> policies;
  // Closed form for forward/backward of `f`/`b` slots, halves I and W of b/2, where it is known;
  // of a config without replicas.
  std::function<std::optional<SlotFormula>(const ScheduleConfig&, double f, double b)> formula;
  std::function<StashFormula(const ScheduleConfig&)> peak_stash;
  // The formula in words, with its source: for `millrace list schedules`.
  const char* formula_text = "";
  // Whether it deals microbatches to unequal replicas of its stages, round robin; the others run in
  // equal copies.
  bool deals = false;
  int chunks = 1;      // V by default
  int directions = 1;  // ranks of one copy that hold each stage
  // Of a file that is written for one size alone: the only numbers it takes, and its stages, which
  // need not be equally many a rank. 0: any.
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  Recompute recompute = Recompute::kNothing;  // that a file asks for
};

struct ScheduleEntry {
  std::string name;
  std::string text;
  const ScheduleBuiltin* builtin;
};

const std::vector<ScheduleEntry>& schedules();
// A name that ends in .sched is a file in the schedule language (schedule/language/language.h).
// Throws Error(kInvalidArgument) with the nearest known name, or what is wrong with the file.
const ScheduleEntry& find_schedule(const std::string& name);
bool has_flush(const ScheduleBuiltin& builtin);  // whether its policies are those of a flush

// Why make_schedule would refuse the config, or nothing when it would not.
std::optional<std::string> why_refused(const ScheduleEntry& entry, const ScheduleConfig& config);

// make() after the checks: kUnsupported with the schedule's own reason when it does not offer (P,
// M); `policy` empty means the default; an unfitting policy is refused, naming those that fit.
Schedule make_schedule(const std::string& name, const ScheduleConfig& config,
                       const std::string& policy = "");

}  // namespace millrace
