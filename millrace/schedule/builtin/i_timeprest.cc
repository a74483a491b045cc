// The order of timeprest with backwards on weights between those of the forward and the newest.
// Source: I-TiMePReSt of "V-TiMePReSt" (Dutta, Chaki, De, 2025). Only notes of others could be
// read: a reconstruction.
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/internal/nf1b.h"

namespace millrace::schedule_builtin {
namespace {

std::vector<std::string> policies() { return {"blend", "stash"}; }

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::nf1b("i-timeprest", config);
  schedule.policy = policies().front();
  return schedule;
}

}  // namespace

const ScheduleBuiltin i_timeprest = {
    .make = make,
    .offers = internal::nf1b_offers,
    .policies = policies,
    .formula = internal::nf1b_formula,
    .peak_stash = internal::nf1b_stash,
    .formula_text =
        "no idle in the steady period for M <= 2 or Mb <= f; stash M+2(P-1-r) "
        "(2025, section unread)"};

}  // namespace millrace::schedule_builtin
