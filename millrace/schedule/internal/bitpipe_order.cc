#include "millrace/schedule/internal/bitpipe_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/schedule/internal/builtins.h"

namespace millrace::internal {
namespace {

// The stages of a rank: of the pipeline down and of the one up, on the way out and on the way back.
struct Chunk {
  int stage;
  int64_t first;
};
using Turns = std::vector<Chunk>;

void add(Turns& turns, int times, std::initializer_list<Chunk> chunks) {
  for (int i = 0; i < times; ++i) {
    turns.insert(turns.end(), chunks);
  }
}

// Writes one rank's list of `units` units of P microbatches.
class Writer {
 public:
  Writer(ActionList& list, int num_ranks, int rank, int units)
      : order_(list),
        warm_up_(num_ranks + num_ranks / 2 + std::min(rank, num_ranks - 1 - rank)),
        pairs_(2 * num_ranks - warm_up_),
        units_(units) {
    const int half = num_ranks / 2;
    const bool upper = rank < half;
    const int lone = upper ? half - rank : rank - half + 1;
    const int64_t up_first = int64_t{half} * units;
    const Chunk down_out{rank, 0};
    const Chunk down_back{2 * num_ranks - 1 - rank, 0};
    const Chunk up_out{num_ranks - 1 - rank, up_first};
    const Chunk up_back{num_ranks + rank, up_first};
    // Own is the pipeline that the rank is nearer to the start of.
    const Chunk own_out = upper ? down_out : up_out;
    const Chunk own_back = upper ? down_back : up_back;
    const Chunk other_out = upper ? up_out : down_out;
    const Chunk other_back = upper ? up_back : down_back;
    add(forwards_, lone, {own_out});
    add(forwards_, half - lone, {other_out, own_out});
    add(forwards_, lone, {other_out, other_back});
    add(forwards_, half - lone, {own_back, other_back});
    add(forwards_, lone, {own_back});
    add(backwards_, lone, {own_back});
    add(backwards_, half - lone, {other_back, own_back});
    add(backwards_, lone, {other_back, other_out});
    add(backwards_, half - lone, {own_out, other_out});
    add(backwards_, lone, {own_out});
  }

  void write() {
    forwards(warm_up_);
    for (int unit = 1; unit < units_; ++unit) {
      alternate(pairs_);
      backwards(warm_up_ - pairs_ + 1);
      alternate(pairs_ - 1);
      forwards(warm_up_ - pairs_ + 1);
    }
    alternate(pairs_);
    backwards(warm_up_);
  }

 private:
  void forwards(int num) {
    for (int i = 0; i < num; ++i) {
      take(ActionKind::kForward, forwards_[num_forwards_++ % forwards_.size()]);
    }
  }
  void backwards(int num) {
    for (int i = 0; i < num; ++i) {
      take(ActionKind::kBackward, backwards_[num_backwards_++ % backwards_.size()]);
    }
  }
  void alternate(int num) {
    for (int i = 0; i < num; ++i) {
      forwards(1);
      backwards(1);
    }
  }
  void take(ActionKind kind, const Chunk& chunk) { order_.next(kind, chunk.stage, chunk.first); }

  RankOrder order_;
  int warm_up_;  // forwards before the first backward
  int pairs_;    // forwards of a unit that are left then
  int units_;
  Turns forwards_;  // of one unit
  Turns backwards_;
  std::size_t num_forwards_ = 0;
  std::size_t num_backwards_ = 0;
};

}  // namespace

std::optional<std::string> bitpipe_offers(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  if (ranks % 2 != 0) {
    return fmt::format(
        "two pipelines in opposite directions need an even number of ranks, found {}; take one "
        "rank more or less, or zb-v",
        ranks);
  }
  if (config.num_microbatches % ranks != 0) {
    return fmt::format(
        "its order is one of P microbatches, repeated; found microbatches = {} on {} ranks; set "
        "microbatches to a multiple of {}, or take 1f1b-interleaved",
        config.num_microbatches, ranks, ranks);
  }
  return refused_chunks(config, kBitpipeChunks);
}

Schedule bitpipe_published_schedule(const char* name, const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  Schedule schedule = placed_schedule(name, config, both_ways(v_placement(ranks)), true);
  for (int rank = 0; rank < ranks; ++rank) {
    Writer(schedule.period[static_cast<std::size_t>(rank)], ranks, rank,
           config.num_microbatches / ranks)
        .write();
  }
  return schedule;
}

double bitpipe_published_idle(const ScheduleConfig& config, double f, double b) {
  const int units = config.num_microbatches / config.num_ranks;
  return (config.num_ranks - 2) * (units + 1) * std::max(f, b) / 2;
}

std::vector<int> bitpipe_published_stash(const ScheduleConfig& config) {
  const int ranks = config.num_ranks;
  std::vector<int> peaks;
  for (int rank = 0; rank < ranks; ++rank) {
    peaks.push_back(3 * ranks / 2 + 1 + std::min(rank, ranks - 1 - rank));
  }
  return peaks;
}

}  // namespace millrace::internal
