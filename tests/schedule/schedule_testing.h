// For the tests of this folder: runs lowered lists one rank at a time with integers for tensors,
// and says what went wrong. Shares no code with lowering, policies and validation, so that it can
// be compared with them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/schedule.h"
#include "millrace/schedule/registry.h"

namespace millrace::testing {

// The builtins with one stage a rank and whole backwards, which are those that deal.
inline std::vector<ScheduleEntry> straight_schedules() {
  std::vector<ScheduleEntry> entries;
  for (const ScheduleEntry& entry : schedules()) {
    if (entry.builtin->deals) {
      entries.push_back(entry);
    }
  }
  return entries;
}

// A plan of `num_stages` stages with `replicas` ranks each, stage by stage, and `num_idle` ranks
// beyond.
inline Plan plan_of(int num_stages, int replicas, int num_idle = 0) {
  Plan plan;
  for (int stage = 0; stage < num_stages; ++stage) {
    PlanStage& made = plan.stages.emplace_back();
    made.layers = {"layer" + std::to_string(stage)};
    for (int replica = 0; replica < replicas; ++replica) {
      made.ranks.push_back(stage * replicas + replica);
    }
  }
  plan.workers = num_stages * replicas + num_idle;
  return plan;
}

// The same with these numbers of replicas.
inline Plan plan_of_replicas(const std::vector<int>& replicas) {
  Plan plan;
  int next = 0;
  for (const int count : replicas) {
    PlanStage& made = plan.stages.emplace_back();
    made.layers = {"layer" + std::to_string(plan.stages.size() - 1)};
    for (int replica = 0; replica < count; ++replica) {
      made.ranks.push_back(next++);
    }
  }
  plan.workers = next;
  return plan;
}

// What crosses the border after (or, backward, before) a stage: encodes all that it depends on.
inline int64_t border_value(bool backward, int stage, int64_t microbatch, int replica) {
  return ((microbatch * 64 + stage) * 64 + replica) * 2 + (backward ? 1 : 0);
}

// A deterministic stream of numbers below 2^31, the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  int64_t below(int64_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>(state_ >> 33) % bound;
  }

 private:
  uint64_t state_;
};

// Runs a training schedule. "" when every action found what it needs and nothing was left over.
class Rehearsal {
 public:
  explicit Rehearsal(const LoweredSchedule& lowered)
      : lowered_(lowered),
        total_((lowered.flush ? 1 : lowered.num_steps) * lowered.microbatches_per_step),
        ranks_(lowered.ranks.size()) {}

  std::string run() {
    bool moved = true;
    while (moved && fault_.empty()) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size() && fault_.empty(); ++rank) {
        const ActionList& list = lowered_.ranks[rank];
        while (fault_.empty() && ranks_[rank].next < list.size() &&
               act(rank, list[ranks_[rank].next])) {
          ++ranks_[rank].next;
          moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size() && fault_.empty(); ++rank) {
      check_end(rank);
    }
    return fault_.empty() && !flying_.empty() ? "a message was never taken" : fault_;
  }

 private:
  struct RankState {
    std::size_t next = 0;
    int64_t newest = 0;
    int num_steps = 0;
    std::map<int64_t, int64_t> read;  // microbatch -> version its forward read
    std::set<int64_t> forwards, backwards, applied;
    std::map<std::pair<bool, int64_t>, int64_t> inbox;
    const Action* reduced = nullptr;
    bool at_reduce = false;  // arrived; leaves when all its replicas have
    int num_reduces = 0;
  };
  using Wire =
      std::tuple<int, int, bool, int, int64_t>;  // from, to, backward, stage of sender, microbatch

  // Round robin over the stage's replicas.
  int replica_for(int stage, int64_t microbatch) const {
    const auto replicas = lowered_.stage_ranks[static_cast<std::size_t>(stage)].size();
    return static_cast<int>(microbatch % static_cast<int64_t>(replicas));
  }
  bool is_own(std::size_t rank, int64_t microbatch) const {
    return replica_for(lowered_.stage_of_rank[rank], microbatch) == lowered_.replica_of_rank[rank];
  }
  int64_t num_own(std::size_t rank) const {
    int64_t count = 0;
    for (int64_t m = 0; m < total_; ++m) {
      count += is_own(rank, m) ? 1 : 0;
    }
    return count;
  }

  bool fail(std::size_t rank, const std::string& text) {
    fault_ = "rank " + std::to_string(rank) + ": " + text;
    return false;
  }

  // False when the rank has to wait, or after a fault.
  bool act(std::size_t rank, const Action& a) {
    RankState& state = ranks_[rank];
    const int stage = lowered_.stage_of_rank[rank];
    const int replica = lowered_.replica_of_rank[rank];
    if (stage < 0 || a.stage != stage || a.first < 0 || a.last < a.first || a.last >= total_) {
      return fail(rank, "out of range");
    }
    const bool message = is_send(a.kind) || is_receive(a.kind);
    if (message != (a.peer != kNone) || (message && a.first != a.last)) {
      return fail(rank, "a peer or a range where none belongs");
    }
    const bool backward = a.kind == ActionKind::kBackward || a.kind == ActionKind::kSendBackward ||
                          a.kind == ActionKind::kReceiveBackward;
    if (message || a.kind == ActionKind::kReduce) {
      if (a.version != kNone) {
        return fail(rank, "a version where none belongs");
      }
    }
    if (is_send(a.kind)) {
      if ((backward ? state.backwards : state.forwards).count(a.first) == 0) {
        return fail(rank, "sends what it has not made");
      }
      const Wire wire{static_cast<int>(rank), a.peer, backward, stage, a.first};
      if (!sent_.insert(wire).second) {
        return fail(rank, "sends twice");
      }
      flying_[wire] = border_value(backward, stage, a.first, replica);
      return true;
    }
    if (is_receive(a.kind)) {
      const auto found = flying_.find(
          {a.peer, static_cast<int>(rank), backward, stage + (backward ? 1 : -1), a.first});
      if (found == flying_.end()) {
        return false;
      }
      if (!state.inbox.try_emplace({backward, a.first}, found->second).second) {
        return fail(rank, "receives twice");
      }
      flying_.erase(found);
      return true;
    }
    switch (a.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
        return compute(rank, a, backward);
      case ActionKind::kReduce:
        return reduce(rank, a);
      case ActionKind::kStep:
        return step(rank, a);
      default:
        return fail(rank, "no such action in these schedules");
    }
  }

  bool compute(std::size_t rank, const Action& a, bool backward) {
    RankState& state = ranks_[rank];
    const int stage = a.stage;
    for (int64_t m = a.first; m <= a.last; ++m) {
      const int source = stage + (backward ? 1 : -1);
      if (source >= 0 && source < lowered_.num_stages) {
        const auto input = state.inbox.find({backward, m});
        if (input == state.inbox.end()) {
          return fail(rank, "computes on what it has not received");
        }
        if (input->second != border_value(backward, source, m, replica_for(source, m))) {
          return fail(rank, "computes on another replica's tensor");
        }
        state.inbox.erase(input);
      }
      if (!(backward ? state.backwards : state.forwards).insert(m).second) {
        return fail(rank, "computes twice");
      }
      if (backward && state.forwards.count(m) == 0) {
        return fail(rank, "backward before forward");
      }
      if (replica_for(stage, m) != lowered_.replica_of_rank[rank]) {
        return fail(rank, "computes another replica's microbatch");
      }
      if (!backward) {
        state.read[m] = state.newest;
        if (stage == 0) {
          entered_on_[m] = state.newest;
        }
      }
      int64_t expected = state.newest;
      if (lowered_.policy == "vertical_sync") {
        expected = entered_on_.at(m);
      } else if (backward && lowered_.policy == "stash") {
        expected = state.read[m];
      }
      if (a.version != expected || a.version > state.newest) {
        return fail(rank, "wrong version");
      }
    }
    return true;
  }

  bool reduce(std::size_t rank, const Action& a) {
    const std::vector<int>& group = lowered_.stage_ranks[static_cast<std::size_t>(a.stage)];
    RankState& state = ranks_[rank];
    if (group.size() == 1) {
      return fail(rank, "nothing to reduce");
    }
    for (int64_t m = a.first; m <= a.last; ++m) {
      if (is_own(rank, m) && state.backwards.count(m) == 0) {
        return fail(rank, "reduces before its backward");
      }
    }
    if (state.reduced != nullptr) {
      return fail(rank, "reduces twice without an update");
    }
    if (!state.at_reduce) {
      state.at_reduce = true;
      ++state.num_reduces;
    }
    for (const int other : group) {
      const RankState& peer = ranks_[static_cast<std::size_t>(other)];
      if (peer.num_reduces < state.num_reduces) {
        return false;
      }
      if (peer.num_reduces == state.num_reduces && peer.at_reduce) {
        const Action& theirs = lowered_.ranks[static_cast<std::size_t>(other)][peer.next];
        if (theirs.first != a.first || theirs.last != a.last) {
          return fail(rank, "replicas reduce different ranges");
        }
      }
    }
    state.at_reduce = false;
    state.reduced = &a;
    return true;
  }

  bool step(std::size_t rank, const Action& a) {
    RankState& state = ranks_[rank];
    const bool replicated = lowered_.stage_ranks[static_cast<std::size_t>(a.stage)].size() > 1;
    if (replicated && (state.reduced == nullptr || state.reduced->first != a.first ||
                       state.reduced->last != a.last)) {
      return fail(rank, "update of what was not reduced");
    }
    state.reduced = nullptr;
    for (int64_t m = a.first; m <= a.last; ++m) {
      if ((is_own(rank, m) && state.backwards.count(m) == 0) || !state.applied.insert(m).second) {
        return fail(rank, "applies a gradient that is not there, or twice");
      }
    }
    if (a.version != ++state.newest) {
      return fail(rank, "makes the wrong version");
    }
    if (++state.num_steps > 1 && lowered_.flush) {
      return fail(rank, "two updates in a step");
    }
    return true;
  }

  void check_end(std::size_t rank) {
    const RankState& state = ranks_[rank];
    if (state.next < lowered_.ranks[rank].size()) {
      fail(rank, "waits for ever");
    } else if (lowered_.stage_of_rank[rank] >= 0 &&
               (static_cast<int64_t>(state.forwards.size()) != num_own(rank) ||
                static_cast<int64_t>(state.backwards.size()) != num_own(rank) ||
                static_cast<int64_t>(state.applied.size()) != total_)) {
      fail(rank, "has left something out");
    } else if (!state.inbox.empty() || state.reduced != nullptr) {
      fail(rank, "has something left over");
    }
  }

  const LoweredSchedule& lowered_;
  const int64_t total_;
  std::vector<RankState> ranks_;
  std::map<int64_t, int64_t> entered_on_;  // microbatch -> version that stage 0 read
  std::map<Wire, int64_t> flying_;
  std::set<Wire> sent_;
  std::string fault_;
};

inline std::string rehearse(const LoweredSchedule& lowered) { return Rehearsal(lowered).run(); }

// Most microbatches whose F ran and whose B has not, and its order of actions, of one rank.
inline int peak_in_flight(const ActionList& list) {
  int now = 0;
  int peak = 0;
  for (const Action& action : list) {
    now += action.kind == ActionKind::kForward ? 1 : action.kind == ActionKind::kBackward ? -1 : 0;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace millrace::testing
