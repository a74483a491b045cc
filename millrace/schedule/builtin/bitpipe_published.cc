// Two pipelines in opposite directions over all ranks and back, in the order that the authors
// publish also for M > P, where it idles longer than the paper's formula. Source: "BitPipe:
// Bidirectional Interleaved Pipeline Parallelism for Accelerating Large Models Training" (Wu, Chen,
// Yu, 2024) and its code, of which the order is a reconstruction.
#include "millrace/schedule/internal/bitpipe_order.h"
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

Schedule make(const ScheduleConfig& config) {
  return internal::bitpipe_published_schedule("bitpipe-published", config);
}

std::vector<std::string> policies() { return {"flush"}; }

std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  if (config.num_microbatches > config.num_ranks && b != 2 * f) {
    return std::nullopt;
  }
  return internal::slots_of_rank(config, 2 * config.num_microbatches * (f + b),
                                 internal::bitpipe_published_idle(config, f, b));
}

StashFormula peak_stash(const ScheduleConfig& config) {
  return {internal::bitpipe_published_stash(config)};
}

}  // namespace

const ScheduleBuiltin bitpipe_published = {
    .make = make,
    .offers = internal::bitpipe_offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle (P-2)(M/P+1) slots a rank with B = 2F; stash 3P/2+1+min(r, P-1-r) chunks "
        "(BitPipe 2024, section unread)",
    .chunks = internal::kBitpipeChunks,
    .directions = 2};

}  // namespace millrace::schedule_builtin
