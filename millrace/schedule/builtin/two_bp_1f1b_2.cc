// 1F1B of two microbatches a rank with the backward in two halves: weight gradients fill what would
// be the wait for the drain. Source: "2BP: 2-Stage Backpropagation" (Rae, Lee, Richings, 2024),
// figure 1 (1F1B-2). That they fill the gaps is a reconstruction: all of them at the end would idle
// twice as long as the paper's table says.
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/internal/two_bp.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  return internal::two_bp_one_f_one_b("2bp-1f1b-2", config);
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  return internal::two_bp_refuses(config, 2);
}

std::vector<std::string> policies() { return {"flush"}; }

}  // namespace

const ScheduleBuiltin two_bp_1f1b_2 = {.make = make,
                                       .offers = offers,
                                       .policies = policies,
                                       .formula = internal::two_bp_one_f_one_b_formula,
                                       .peak_stash = internal::two_bp_stash,
                                       .formula_text =
                                           "idle share (P-1)/(7P-1) with F = I = W, at M = 2P; "
                                           "stash M to W (2BP 2024, figure 1)"};

}  // namespace millrace::schedule_builtin
