// All forwards of a step, then all its backwards, then one update: a stage stashes every microbatch
// of the step. Source: GPipe (Huang et al., "GPipe: Efficient Training of Giant Neural Networks
// using Pipeline Parallelism", NeurIPS 2019), section 2. The paper draws backwards in reverse
// microbatch order; here they run in microbatch order, which has the same bubble and lets gradients
// be summed in one order under every flush schedule.
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::pipeline_schedule("gpipe", config, true);
  for (const internal::Position& position : internal::positions_of(config)) {
    schedule.period[position.rank] = internal::staggered_order(
        position, schedule.num_microbatches, position.num_own(schedule.num_microbatches));
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig&) { return std::nullopt; }

std::vector<std::string> policies() { return {"flush"}; }

// Filling and draining each cost S-1 slots of a microbatch's forward and backward, on every rank
// alike.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const double ranks = config.num_ranks;
  return SlotFormula{.window_slots = (config.num_microbatches + ranks - 1) * (f + b),
                     .idle_slots = ranks * (ranks - 1) * (f + b)};
}

StashFormula peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (const internal::Position& position : internal::positions_of(config)) {
    peaks.push_back(static_cast<int>(position.num_own(config.num_parts())));
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin gpipe = {
    make,    offers,     policies,
    formula, peak_stash, "idle share (S-1)/(M+S-1); stash M (GPipe, NeurIPS 2019, section 2)",
    true};

}  // namespace millrace::schedule_builtin
