// Forwards of a minibatch in microbatches, one backward for all of them, never drained inside an
// epoch; forwards read one version on all stages, backwards the newest that all stages have.
// Source: TiMePReSt (Dutta, Chaki, De, FGCS 2026). Only notes of others could be read: the order
// and the lag of versions are a reconstruction.
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/internal/nf1b.h"

namespace millrace::schedule_builtin {
namespace {

std::vector<std::string> policies() { return {"vertical_newest"}; }

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::nf1b("timeprest", config);
  schedule.policy = policies().front();
  return schedule;
}

}  // namespace

const ScheduleBuiltin timeprest = {
    .make = make,
    .offers = internal::nf1b_offers,
    .policies = policies,
    .formula = internal::nf1b_formula,
    .peak_stash = internal::nf1b_stash,
    .formula_text =
        "no idle in the steady period for M <= 2 or Mb <= f; stash M+2(P-1-r) "
        "(FGCS 2026, section unread)"};

}  // namespace millrace::schedule_builtin
