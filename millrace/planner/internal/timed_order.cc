#include "millrace/planner/internal/timed_order.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace::internal {
namespace {

enum Kind : std::size_t { kF, kB, kW };

class Orderer {
 public:
  Orderer(const TimedPipeline& pipeline, const Preferences& preferences)
      : pipeline_(pipeline),
        preferences_(preferences),
        num_(static_cast<std::size_t>(pipeline.num_microbatches)),
        stages_(pipeline.rank_of.size()),
        ranks_(static_cast<std::size_t>(pipeline.num_ranks)) {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (std::vector<double>& ends : stages_[stage].ends) {
        ends.resize(num_);
      }
      ranks_[static_cast<std::size_t>(pipeline.rank_of[stage])].stages.push_back(stage);
    }
    result_.lists.resize(ranks_.size());
  }

  std::optional<TimedOrder> run() {
    const std::size_t all = stages_.size() * num_ * (pipeline_.split ? 3 : 2);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      find_next(rank);
    }
    for (std::size_t done = 0; done < all; ++done) {
      // What starts first cannot be delayed by anything that starts later.
      std::size_t first = 0;
      for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].next_s < ranks_[first].next_s) {
          first = rank;
        }
      }
      if (ranks_[first].next_s == kNever) {
        return std::nullopt;
      }
      start(first);
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.seconds = std::max(result_.seconds, ranks_[rank].free_s + pipeline_.update_s[rank]);
    }
    return std::move(result_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Stage {
    std::array<std::size_t, 3> done{};
    std::array<std::vector<double>, 3> ends;
  };
  struct Rank {
    std::vector<std::size_t> stages;
    double free_s = 0;
    double stash_bytes = 0;
    int in_flight = 0;
    // The best action by what is known so far.
    double next_s = kNever;
    std::size_t stage = 0;
    Kind kind = kF;
  };

  double message_s(std::size_t from, std::size_t to) const {
    return pipeline_.rank_of[from] == pipeline_.rank_of[to]
               ? 0
               : pipeline_.message_s[std::min(from, to)];
  }

  // When the next action of a kind has its inputs; kNever while nothing says when.
  double ready_s(std::size_t index, Kind kind) const {
    const Stage& stage = stages_[index];
    const std::size_t m = stage.done[kind];
    if (m >= num_ || (kind == kW && (!pipeline_.split || m >= stage.done[kB])) ||
        (kind == kB && m >= stage.done[kF])) {
      return kNever;
    }
    if (kind == kW) {
      return stage.ends[kB][m];
    }
    const bool forward = kind == kF;
    if (forward ? index == 0 : index + 1 == stages_.size()) {
      return forward ? 0 : stage.ends[kF][m];
    }
    const std::size_t from = forward ? index - 1 : index + 1;
    if (m >= stages_[from].done[kind]) {
      return kNever;
    }
    const double arrives = stages_[from].ends[kind][m] + message_s(from, index);
    return forward ? arrives : std::max(arrives, stage.ends[kF][m]);
  }

  void find_next(std::size_t index) {
    Rank& rank = ranks_[index];
    rank.next_s = kNever;
    double best = 0;
    for (const std::size_t stage : rank.stages) {
      for (const Kind kind : {kB, kF, kW}) {
        const double ready = ready_s(stage, kind);
        if (ready == kNever || (kind == kF && is_full(index, stage))) {
          continue;
        }
        const double starts = std::max(ready, rank.free_s);
        const double score =
            preferences_.bias[kind] + preferences_.stage[kind] * static_cast<double>(stage) +
            preferences_.microbatch[kind] * static_cast<double>(stages_[stage].done[kind]);
        if (starts < rank.next_s || (starts == rank.next_s && score > best)) {
          rank.next_s = starts;
          rank.stage = stage;
          rank.kind = kind;
          best = score;
        }
      }
    }
  }

  bool is_full(std::size_t index, std::size_t stage) const {
    const Rank& rank = ranks_[index];
    return (!preferences_.caps.empty() && rank.in_flight >= preferences_.caps[index]) ||
           rank.stash_bytes + pipeline_.stash_bytes[stage] > pipeline_.stash_limit_bytes[index];
  }

  void start(std::size_t index) {
    Rank& rank = ranks_[index];
    Stage& stage = stages_[rank.stage];
    const Kind kind = rank.kind;
    const std::size_t started = rank.stage;
    const std::size_t m = stage.done[kind]++;
    rank.free_s = rank.next_s + pipeline_.seconds[started][kind];
    stage.ends[kind][m] = rank.free_s;
    const ActionKind action = kind == kF        ? ActionKind::kForward
                              : kind == kW      ? ActionKind::kWeightGradient
                              : pipeline_.split ? ActionKind::kInputGradient
                                                : ActionKind::kBackward;
    result_.lists[index].push_back(
        Action::of(action, static_cast<int>(started), static_cast<int64_t>(m)));
    if (kind == kF) {
      ++rank.in_flight;
      rank.stash_bytes += pipeline_.stash_bytes[started];
    } else if (kind == (pipeline_.split ? kW : kB)) {
      --rank.in_flight;
      rank.stash_bytes -= pipeline_.stash_bytes[started];
    }
    find_next(index);
    const bool has_next = kind == kF ? started + 1 < stages_.size() : kind == kB && started > 0;
    if (has_next) {
      const std::size_t next = kind == kF ? started + 1 : started - 1;
      find_next(static_cast<std::size_t>(pipeline_.rank_of[next]));
    }
  }

  const TimedPipeline& pipeline_;
  const Preferences& preferences_;
  std::size_t num_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
  TimedOrder result_;
};

}  // namespace

std::optional<TimedOrder> order_by(const TimedPipeline& pipeline, const Preferences& preferences) {
  return Orderer(pipeline, preferences).run();
}

}  // namespace millrace::internal
