// Two pipelines over the same ranks, one down and one up, each with half of the microbatches: what
// one leaves idle at its ends the other fills, and every stage has its weights on two ranks.
// Source: "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines"
// (Li & Hoefler, SC'21), sections 3.1 to 3.3. The order at N = P is the paper's, as a
// reconstruction; for more microbatches the paper joins such units, and list scheduling leaves
// fewer gaps.
#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

constexpr int kMostRanksOfRule = 14;

// N = P on one rank. It holds stage `rank` of the pipeline down and P-1-rank of the one up; `own`
// is the one that it is nearer to the start of, and at the ends of both passes it works only there.
void write_unit(ActionList& list, int num_ranks, int rank) {
  const int half = num_ranks / 2;
  const bool upper = rank < half;
  const int lone = upper ? half - rank : rank - half + 1;
  struct Pipe {
    int stage;
    int64_t first;
  };
  const Pipe down{rank, 0};
  const Pipe up{num_ranks - 1 - rank, half};
  const Pipe& own = upper ? down : up;
  const Pipe& other = upper ? up : down;
  std::vector<const Pipe*> forwards(static_cast<std::size_t>(lone), &own);
  std::vector<const Pipe*> backwards(static_cast<std::size_t>(lone), &other);
  for (int i = lone; i < half; ++i) {
    forwards.insert(forwards.end(), {&other, &own});
    backwards.insert(backwards.end(), {&own, &other});
  }
  forwards.insert(forwards.end(), static_cast<std::size_t>(lone), &other);
  backwards.insert(backwards.end(), static_cast<std::size_t>(lone), &own);

  const std::size_t warm_up = static_cast<std::size_t>(half + std::min(rank, num_ranks - 1 - rank));
  internal::RankOrder order(list);
  for (std::size_t turn = 0; turn < forwards.size() + warm_up; ++turn) {
    if (turn < forwards.size()) {
      order.next(ActionKind::kForward, forwards[turn]->stage, forwards[turn]->first);
    }
    if (turn >= warm_up) {
      const Pipe& pipe = *backwards[turn - warm_up];
      order.next(ActionKind::kBackward, pipe.stage, pipe.first);
    }
  }
}

// In slots of F=1, B=2, whatever the real times: forwards of the farthest stage first, backwards of
// the oldest microbatch.
double score(ActionKind kind, int stage, int64_t index) {
  const auto place = static_cast<double>(index);
  return kind == ActionKind::kForward ? stage : stage - 2 * place;
}

Schedule make(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  Schedule schedule = internal::placed_schedule(
      "chimera", config, internal::both_ways(internal::looped_placement(ranks, 1)), true);
  if (config.num_microbatches == ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      write_unit(schedule.period[static_cast<std::size_t>(rank)], ranks, rank);
    }
    return schedule;
  }
  const internal::ListRule rule{.score = score,
                                .caps = std::vector<int>(static_cast<std::size_t>(ranks), ranks)};
  auto listed = internal::list_schedule(
      ranks, internal::two_routes(schedule.stage_ranks, config.num_microbatches), rule);
  MILLRACE_CHECK(listed, "P stages a rank are enough to go on");
  schedule.period = std::move(listed->lists);
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  const int num = config.num_microbatches;
  if (ranks % 2 != 0) {
    return "two pipelines in opposite directions need an even number of ranks, found " +
           std::to_string(ranks) + "; take one rank more or less, or 1f1b";
  }
  if (num % 2 != 0 || num < ranks) {
    return "each of the two pipelines takes half of the microbatches, and needs P/2 of them to "
           "fill the other's gaps; found microbatches = " +
           std::to_string(num) + " on " + std::to_string(ranks) +
           " ranks; set microbatches to an even number of at least " + std::to_string(ranks) +
           ", or take 1f1b";
  }
  return internal::refused_chunks(config, 1);
}

std::vector<std::string> policies() { return {"flush"}; }

// The paper's, for other slots and more microbatches as replays show it. With more than
// kMostRanksOfRule ranks some sizes of list scheduling miss it by a slot or a few.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  const int ranks = config.num_ranks;
  if (config.num_microbatches > ranks && (b != 2 * f || ranks > kMostRanksOfRule)) {
    return std::nullopt;
  }
  return internal::slots_of_rank(config, config.num_microbatches * (f + b),
                                 (ranks - 2) * std::max(f, b));
}

StashFormula peak_stash(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  if (config.num_microbatches > ranks) {
    return {.ranks = std::vector<int>(static_cast<std::size_t>(ranks), ranks), .exact = false};
  }
  std::vector<int> peaks;
  for (int rank = 0; rank < ranks; ++rank) {
    peaks.push_back(ranks / 2 + 1 + std::min(rank, ranks - 1 - rank));
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin chimera = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle share (P-2)/(1.5M+P-2) with B = 2F; stash P/2+1+min(r, P-1-r) at M = P, "
        "at most P above (SC'21, section 3)",
    .directions = 2};

}  // namespace millrace::schedule_builtin
