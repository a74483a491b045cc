#include "millrace/schedule/internal/list_schedule.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace millrace::internal {
namespace {

// The kinds in which a stage of a route makes progress, in the order in which they go first. W only
// where split, and then B stands for I.
enum Kind : std::size_t { kB, kF, kW, kNumKinds };

// One stage of one route: how many of its microbatches have ended each kind.
struct Chunk {
  std::size_t route = 0;
  int stage = 0;
  int64_t ended[kNumKinds] = {0, 0, 0};
};

struct Choice {
  Chunk* chunk = nullptr;
  Kind kind = kF;
  double score = 0;
};

class Lister {
 public:
  Lister(int num_ranks, const std::vector<Route>& routes, const ListRule& rule)
      : routes_(routes), rule_(rule), ranks_(static_cast<std::size_t>(num_ranks)) {
    result_.lists.resize(ranks_.size());
    for (std::size_t route = 0; route < routes.size(); ++route) {
      std::vector<Chunk>& chunks = chunks_.emplace_back();
      for (std::size_t stage = 0; stage < routes[route].ranks.size(); ++stage) {
        chunks.push_back({route, static_cast<int>(stage)});
      }
      remaining_ += chunks.size() * routes[route].microbatches.size() * (rule.split ? 3 : 2);
    }
    for (std::vector<Chunk>& chunks : chunks_) {
      for (Chunk& chunk : chunks) {
        rank_of(chunk).chunks.push_back(&chunk);
      }
    }
    for (Rank& rank : ranks_) {
      std::stable_sort(rank.chunks.begin(), rank.chunks.end(),
                       [](const Chunk* a, const Chunk* b) { return a->stage < b->stage; });
    }
  }

  std::optional<ListScheduled> run() {
    std::vector<std::size_t> awake;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      awake.push_back(rank);
    }
    for (int64_t now = 0;;) {
      for (const std::size_t rank : awake) {
        start_best(rank, now);
      }
      if (ends_.empty()) {
        break;
      }
      awake.clear();
      now = std::get<0>(ends_.top());
      for (; !ends_.empty() && std::get<0>(ends_.top()) == now; ends_.pop()) {
        end(std::get<1>(ends_.top()), awake);
      }
      result_.window = now;
    }
    return remaining_ == 0 ? std::optional(std::move(result_)) : std::nullopt;
  }

 private:
  struct Rank {
    std::vector<Chunk*> chunks;  // by stage
    int stash = 0;
    Choice running;  // no chunk: free
  };
  using End = std::tuple<int64_t, std::size_t>;  // when, rank

  Rank& rank_of(const Chunk& chunk) { return ranks_[index_of(chunk.route, chunk.stage)]; }
  std::size_t index_of(std::size_t route, int stage) const {
    return static_cast<std::size_t>(routes_[route].ranks[static_cast<std::size_t>(stage)]);
  }
  bool has_stage(const Chunk& chunk, int stage) const {
    return stage >= 0 && stage < static_cast<int>(routes_[chunk.route].ranks.size());
  }
  const Chunk& at(const Chunk& chunk, int stage) const {
    return chunks_[chunk.route][static_cast<std::size_t>(stage)];
  }

  // Microbatches whose inputs for `kind` have arrived.
  int64_t arrived(const Chunk& chunk, Kind kind) const {
    switch (kind) {
      case kF:
        return has_stage(chunk, chunk.stage - 1)
                   ? at(chunk, chunk.stage - 1).ended[kF]
                   : static_cast<int64_t>(routes_[chunk.route].microbatches.size());
      case kB:
        return has_stage(chunk, chunk.stage + 1)
                   ? std::min(chunk.ended[kF], at(chunk, chunk.stage + 1).ended[kB])
                   : chunk.ended[kF];
      default:
        return rule_.split ? chunk.ended[kB] : 0;
    }
  }

  ActionKind action_kind(Kind kind) const {
    if (kind == kF) {
      return ActionKind::kForward;
    }
    if (!rule_.split) {
      return ActionKind::kBackward;
    }
    return kind == kB ? ActionKind::kInputGradient : ActionKind::kWeightGradient;
  }

  void start_best(std::size_t index, int64_t now) {
    Rank& rank = ranks_[index];
    if (rank.running.chunk != nullptr) {
      return;
    }
    const bool full = !rule_.caps.empty() && rank.stash >= rule_.caps[index];
    for (Chunk* chunk : rank.chunks) {
      for (const Kind kind : {kB, kF, kW}) {
        const int64_t next = chunk->ended[kind];
        if (next >= arrived(*chunk, kind) || (kind == kF && full)) {
          continue;
        }
        const Choice choice{chunk, kind, rule_.score(action_kind(kind), chunk->stage, next)};
        const Choice& best = rank.running;
        // One stage may stand here in several routes.
        const bool before = best.chunk != nullptr && choice.score == best.score &&
                            chunk->stage == best.chunk->stage && kind < best.kind;
        if (best.chunk == nullptr || choice.score > best.score || before) {
          rank.running = choice;
        }
      }
    }
    if (rank.running.chunk == nullptr) {
      return;
    }
    const Choice& chosen = rank.running;
    const auto place = static_cast<std::size_t>(chosen.chunk->ended[chosen.kind]);
    result_.lists[index].push_back(Action::of(action_kind(chosen.kind), chosen.chunk->stage,
                                              routes_[chosen.chunk->route].microbatches[place]));
    rank.stash += chosen.kind == kF ? 1 : 0;
    const int64_t lasts = chosen.kind == kF   ? rule_.forward
                          : chosen.kind == kB ? rule_.backward
                                              : rule_.weight;
    ends_.emplace(now + lasts, index);
  }

  // Adds the ranks that may now have something to start.
  void end(std::size_t index, std::vector<std::size_t>& awake) {
    Rank& rank = ranks_[index];
    const Chunk& chunk = *rank.running.chunk;
    const Kind kind = rank.running.kind;
    ++rank.running.chunk->ended[kind];
    --remaining_;
    rank.stash -= kind == (rule_.split ? kW : kB) ? 1 : 0;
    rank.running = {};
    awake.push_back(index);
    const int next = kind == kF ? chunk.stage + 1 : kind == kB ? chunk.stage - 1 : -1;
    if (has_stage(chunk, next)) {
      awake.push_back(index_of(chunk.route, next));
    }
  }

  const std::vector<Route>& routes_;
  const ListRule& rule_;
  std::vector<std::vector<Chunk>> chunks_;  // [route][stage]
  std::vector<Rank> ranks_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::size_t remaining_ = 0;
  ListScheduled result_;
};

}  // namespace

std::optional<ListScheduled> list_schedule(int num_ranks, const std::vector<Route>& routes,
                                           const ListRule& rule) {
  return Lister(num_ranks, routes, rule).run();
}

}  // namespace millrace::internal
