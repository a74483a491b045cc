// Each rank holds several stages, looped over the ranks, and runs all microbatches through one of
// them before the next: a stage's weights are used in one burst a pass, and M need not divide by P.
// Source: "Breadth-First Pipeline Parallelism" (Lamy-Poirier, MLSys 2023), section 4. Backwards run
// in microbatch order, as in gpipe here.
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

constexpr int kChunks = 2;

Schedule make(const ScheduleConfig& config) {
  const int chunks = internal::chunks_of(config, kChunks);
  Schedule schedule = internal::placed_schedule(
      "breadth-first", config, internal::looped_placement(config.num_ranks, chunks), true);
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    ActionList& list = schedule.period[static_cast<std::size_t>(stage % config.num_ranks)];
    for (int m = 0; m < config.num_microbatches; ++m) {
      list.push_back(Action::of(ActionKind::kForward, stage, m));
    }
  }
  for (int stage = schedule.num_stages - 1; stage >= 0; --stage) {
    ActionList& list = schedule.period[static_cast<std::size_t>(stage % config.num_ranks)];
    for (int m = 0; m < config.num_microbatches; ++m) {
      list.push_back(Action::of(ActionKind::kBackward, stage, m));
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig&) { return std::nullopt; }

std::vector<std::string> policies() { return {"flush"}; }

// The paper's overhead (P-1)/(MV) holds from M = P on; below, every further chunk waits until a
// microbatch has come round.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  return internal::slots_of_loops(config, internal::chunks_of(config, kChunks), f, b);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  return {std::vector<int>(static_cast<std::size_t>(config.num_ranks),
                           internal::chunks_of(config, kChunks) * config.num_microbatches)};
}

}  // namespace

const ScheduleBuiltin breadth_first = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle over busy (P-1)/(MV) for M >= P, ((V-1)(P-M)+P-1)/(MV) below; stash VM "
        "chunks (MLSys 2023, section 4)",
    .chunks = kChunks};

}  // namespace millrace::schedule_builtin
