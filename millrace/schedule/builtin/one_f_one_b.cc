// A stage runs just enough forwards ahead that the first backward can reach it, then one forward
// and one backward in turn, then drains. GPipe's bubble with a stash bounded by the depth instead
// of by M. Source: PipeDream-Flush in "Memory-Efficient Pipeline-Parallel DNN Training" (Narayanan
// et al., ICML'21), section 3.2; the alternation is 1F1B of PipeDream (SOSP'19), section 3.2.
#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::pipeline_schedule("1f1b", config, true);
  for (const internal::Position& position : internal::positions_of(config)) {
    // Bounded by M as well: fewer microbatches than stages simply never reach the alternation.
    const int64_t warm_up =
        std::min<int64_t>(position.num_own(schedule.num_microbatches),
                          internal::one_f_one_b_warm_up(config, position.stage));
    schedule.period[position.rank] =
        internal::staggered_order(position, schedule.num_microbatches, warm_up);
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig&) { return std::nullopt; }

std::vector<std::string> policies() { return {"flush"}; }

std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const double ranks = config.num_ranks;
  return SlotFormula{.window_slots = (config.num_microbatches + ranks - 1) * (f + b),
                     .idle_slots = ranks * (ranks - 1) * (f + b)};
}

StashFormula peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (const internal::Position& position : internal::positions_of(config)) {
    const auto own = static_cast<int>(position.num_own(config.num_parts()));
    peaks.push_back(std::min(own, internal::one_f_one_b_warm_up(config, position.stage) + 1));
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin one_f_one_b = {
    make,       offers,
    policies,   formula,
    peak_stash, "idle share (S-1)/(M+S-1); stash min(M, S-s) on stage s (ICML'21, section 3.2)",
    true};

}  // namespace millrace::schedule_builtin
