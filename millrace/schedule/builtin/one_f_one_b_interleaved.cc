// Each rank holds several stages, looped over the ranks, and runs 1F1B over all of them: the
// pipeline fills and drains in a fraction of the time. Source: "Efficient Large-Scale Language
// Model Training on GPU Clusters Using Megatron-LM" (Narayanan et al., SC'21), section 2.2. There M
// is a multiple of P. Here any M is taken: microbatches pass through a stage in groups, and what M
// leaves over P goes into the first group, as a short last group would wait or deadlock.
#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::schedule_builtin {
namespace {

constexpr int kChunks = 2;

int first_group(const ScheduleConfig& config) {
  const int m = config.num_microbatches;
  return m < config.num_ranks ? m : config.num_ranks + m % config.num_ranks;
}

// Forwards of a rank before its first backward.
int warm_up_of(const ScheduleConfig& config, int rank) {
  const int chunks = internal::chunks_of(config, kChunks);
  return std::min(chunks * config.num_microbatches,
                  2 * (config.num_ranks - rank - 1) + (chunks - 1) * first_group(config));
}

// The chunk of each of a rank's forwards (or backwards, where chunks are counted from the last): a
// group of microbatches on every chunk, then the next group.
std::vector<int> chunk_sequence(const ScheduleConfig& config) {
  std::vector<int> sequence;
  int group = first_group(config);
  for (int done = 0; done < config.num_microbatches; done += group, group = config.num_ranks) {
    for (int chunk = 0; chunk < internal::chunks_of(config, kChunks); ++chunk) {
      sequence.insert(sequence.end(), static_cast<std::size_t>(group), chunk);
    }
  }
  return sequence;
}

Schedule make(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  const int chunks = internal::chunks_of(config, kChunks);
  Schedule schedule = internal::placed_schedule("1f1b-interleaved", config,
                                                internal::looped_placement(ranks, chunks), true);
  const std::vector<int> sequence = chunk_sequence(config);
  for (int rank = 0; rank < ranks; ++rank) {
    internal::RankOrder order(schedule.period[static_cast<std::size_t>(rank)]);
    const auto warm_up = static_cast<std::size_t>(warm_up_of(config, rank));
    for (std::size_t turn = 0; turn < sequence.size() + warm_up; ++turn) {
      if (turn < sequence.size()) {
        order.next(ActionKind::kForward, sequence[turn] * ranks + rank);
      }
      if (turn >= warm_up) {
        const int chunk = chunks - 1 - sequence[turn - warm_up];
        order.next(ActionKind::kBackward, chunk * ranks + rank);
      }
    }
  }
  return schedule;
}

std::optional<std::string> offers(const ScheduleConfig&) { return std::nullopt; }

std::vector<std::string> policies() { return {"flush"}; }

// With fewer microbatches than ranks a group does not fill the loop, which every further chunk
// pays.
std::optional<SlotFormula> formula(const ScheduleConfig& config, double f, double b) {
  return internal::slots_of_loops(config, internal::chunks_of(config, kChunks), f, b);
}

StashFormula peak_stash(const ScheduleConfig& config) {
  std::vector<int> peaks;
  for (int rank = 0; rank < config.num_ranks; ++rank) {
    peaks.push_back(std::min(internal::chunks_of(config, kChunks) * config.num_microbatches,
                             warm_up_of(config, rank) + 1));
  }
  return {std::move(peaks)};
}

}  // namespace

const ScheduleBuiltin one_f_one_b_interleaved = {
    .make = make,
    .offers = offers,
    .policies = policies,
    .formula = formula,
    .peak_stash = peak_stash,
    .formula_text =
        "idle share (P-1)/(VM+P-1) for M >= P, ((V-1)(P-M)+P-1)/(VP+M-1) below; stash "
        "min(VM, 2(P-r-1)+(V-1)g+1) chunks, g = P + M mod P (SC'21, section 2.2)",
    .chunks = kChunks};

}  // namespace millrace::schedule_builtin
