// Two pipelines in opposite directions, each over all ranks and back: the idle time of chimera with
// half as long stages. Source: "BitPipe: Bidirectional Interleaved Pipeline Parallelism for
// Accelerating Large Models Training" (Wu, Chen, Yu, 2024). At M = P the order is the published
// one, as a reconstruction. For more microbatches the published order idles longer than the paper's
// formula; here list scheduling finds one, and the better of both is taken.
#include <algorithm>

#include "millrace/schedule/internal/bitpipe_order.h"
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

// Up to here the list-scheduled order keeps the paper's formula.
constexpr int kMostRanksOfRule = 8;

// In slots of F=1, B=2, whatever the real times, with a stash of 2P+2 chunks.
std::optional<internal::ListScheduled> by_rule(const Schedule& schedule) {
  const int ranks = schedule.num_ranks;
  const internal::ListRule rule{
      .score =
          [ranks](ActionKind kind, int stage, int64_t index) {
            return kind == ActionKind::kForward
                       ? stage / 4.0
                       : (stage >= ranks ? 3 : 0) - static_cast<double>(index) / 2;
          },
      .caps = std::vector<int>(static_cast<std::size_t>(ranks), 2 * ranks + 2)};
  return internal::list_schedule(
      ranks, internal::two_routes(schedule.stage_ranks, schedule.num_microbatches), rule);
}

Schedule make(const ScheduleConfig& config) {
  Schedule schedule = internal::bitpipe_published_schedule("bitpipe", config);
  if (config.num_microbatches == config.num_ranks) {
    return schedule;
  }
  auto listed = by_rule(schedule);
  const double published =
      6.0 * config.num_microbatches + internal::bitpipe_published_idle(config, 1, 2);
  if (listed && static_cast<double>(listed->window) <= published) {
    schedule.period = std::move(listed->lists);
  }
  return schedule;
}

std::vector<std::string> policies() { return {"flush"}; }

std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const bool unit = config.num_microbatches == config.num_ranks;
  if (!unit && b != 2 * f) {
    return std::nullopt;
  }
  const double idle = !unit && config.num_ranks <= kMostRanksOfRule
                          ? (config.num_ranks - 2) * b
                          : internal::bitpipe_published_idle(config, f, b);
  return internal::slots_of_rank(config, 2 * config.num_microbatches * (f + b), idle, unit);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  if (config.num_microbatches == config.num_ranks) {
    return {internal::bitpipe_published_stash(config)};
  }
  return {.ranks = std::vector<int>(static_cast<std::size_t>(config.num_ranks),
                                    2 * config.num_ranks + 2),
          .exact = false};
}

}  // namespace

const ScheduleBuiltin bitpipe = {
    .make = make,
    .offers = internal::bitpipe_offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle share (P-2)/(3M+P-2) with B = 2F at M = P, at most that for P <= 8 and at "
        "most (P-2)(M/P+1) slots a rank above; stash 3P/2+1+min(r, P-1-r) chunks at M = "
        "P, at most 2P+2 (BitPipe 2024, section unread)",
    .chunks = internal::kBitpipeChunks,
    .directions = 2};

}  // namespace millrace::schedule_builtin
