// The schedules of "2BP: 2-Stage Backpropagation" (Rae, Lee, Richings, 2024) that are 1F1B with a
// split backward, for builtin/two_bp_*.cc. Pure functions.
#pragma once

#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace::internal {

// 1F1B with I for B. A rank runs its first W after its last F, then one after every I, and the rest
// at the end: where 1F1B waits for the drain.
Schedule two_bp_one_f_one_b(const char* name, const ScheduleConfig& config);
// For M >= P.
std::optional<SlotFormula> two_bp_one_f_one_b_formula(const ScheduleConfig& config, double f,
                                                      double b);
// M, as W waits for the last F.
StashFormula two_bp_stash(const ScheduleConfig& config);
// The two variants are this one order, at M = P and M = 2P: refuses others than `per_rank` * P.
std::optional<std::string> two_bp_refuses(const ScheduleConfig& config, int per_rank);

}  // namespace millrace::internal
