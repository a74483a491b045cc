// GPipe with the backward in two halves: all forwards, all input gradients, and then the weight
// gradients of all microbatches in one call. Source: "2BP: 2-Stage Backpropagation" (Rae, Lee,
// Richings, 2024), figure 1, where M = P; the order and its formula hold for any M.
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/internal/two_bp.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::placed_schedule(
      "2bp-gpipe", config, internal::looped_placement(config.num_ranks, 1), true);
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    ActionList& list = schedule.period[static_cast<std::size_t>(rank)];
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kInputGradient}) {
      for (int m = 0; m < config.num_microbatches; ++m) {
        list.push_back(Action::of(kind, rank, m));
      }
    }
    list.push_back(
        Action::range(ActionKind::kWeightGradient, rank, 0, config.num_microbatches - 1));
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  return internal::refused_chunks(config, 1);
}

std::vector<std::string> policies() { return {"flush"}; }

// Rank 0 waits for the others' fill and drain, without their W.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  return internal::slots_of_rank(config, config.num_microbatches * (f + b),
                                 (config.num_ranks - 1) * (f + b / 2));
}

}  // namespace

const ScheduleBuiltin two_bp_gpipe = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = internal::two_bp_stash,
    .formula_text =
        "idle share 2(P-1)/(2(P-1)+3M) with F = I = W; stash M to W (2BP 2024, figure 1)"};

}  // namespace millrace::schedule_builtin
