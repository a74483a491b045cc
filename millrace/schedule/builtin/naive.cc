// One microbatch at a time: it passes forward through all stages and back before the next one
// enters, so exactly one rank works at any moment. The baseline that pipelining papers measure
// against. Source: "naive model parallelism" of GPipe (Huang et al., NeurIPS 2019), section 2, and
// model parallelism as PipeDream (Narayanan et al., SOSP'19), section 2 describes it.
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::pipeline_schedule("naive", config, true);
  for (const internal::Position& position : internal::positions_of(config)) {
    schedule.period[position.rank] =
        internal::staggered_order(position, schedule.num_microbatches, 0);
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig&) { return std::nullopt; }

std::vector<std::string> policies() { return {"flush"}; }

std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const double ranks = config.num_ranks;
  const double busy_of_rank = config.num_microbatches * (f + b);
  return SlotFormula{.window_slots = ranks * busy_of_rank,
                     .idle_slots = ranks * (ranks - 1) * busy_of_rank};
}

StashFormula peak_stash(const ScheduleConfig& config) {
  return {std::vector<int>(static_cast<std::size_t>(config.num_ranks), 1)};
}

}  // namespace

const ScheduleBuiltin naive = {
    make,    offers,     policies,
    formula, peak_stash, "idle share (S-1)/S for any M; stash 1 (GPipe, NeurIPS 2019, section 2)",
    true};

}  // namespace millrace::schedule_builtin
