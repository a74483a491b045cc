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

// Every (P, M, V) that the schedule offers of these ranks and microbatches and 1 to 4 chunks, V
// filled in.
inline std::vector<ScheduleConfig> offered(const ScheduleEntry& entry,
                                           const std::vector<int>& num_ranks,
                                           const std::vector<int>& num_microbatches) {
  std::vector<ScheduleConfig> configs;
  for (const int ranks : num_ranks) {
    for (const int microbatches : num_microbatches) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        const ScheduleConfig config{
            .num_ranks = ranks, .num_microbatches = microbatches, .chunks = chunks};
        if (!why_refused(entry, config)) {
          configs.push_back(config);
        }
      }
    }
  }
  return configs;
}

inline std::vector<int> from_to(int first, int last) {
  std::vector<int> numbers;
  for (int number = first; number <= last; ++number) {
    numbers.push_back(number);
  }
  return numbers;
}

inline std::string describe(const ScheduleEntry& entry, const ScheduleConfig& config) {
  return entry.name + " P=" + std::to_string(config.num_ranks) +
         " M=" + std::to_string(config.num_microbatches) + " V=" + std::to_string(config.chunks) +
         (config.copies > 1 ? " copies=" + std::to_string(config.copies) : "");
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
inline int64_t border_value(bool backward, int stage, int64_t microbatch, int rank) {
  return ((microbatch * 1024 + stage) * 1024 + rank) * 2 + (backward ? 1 : 0);
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

// A schedule with a flush written out, one text a position: {"0F0 0B0", "1F0 1B0"}.
inline Schedule flush_schedule(const std::vector<std::string>& lists,
                               const std::vector<std::vector<int>>& stage_ranks,
                               int num_microbatches) {
  Schedule schedule;
  schedule.name = "by-hand";
  schedule.num_ranks = static_cast<int>(lists.size());
  schedule.num_stages = static_cast<int>(stage_ranks.size());
  schedule.num_microbatches = num_microbatches;
  schedule.period_microbatches = num_microbatches;
  schedule.stage_ranks = stage_ranks;
  for (const std::string& list : lists) {
    schedule.period.push_back(parse_actions(list));
  }
  return schedule;
}

// The same without a flush: the period of one step, nothing before and after it.
inline Schedule endless_schedule(const std::vector<std::string>& lists,
                                 const std::vector<std::vector<int>>& stage_ranks,
                                 int num_microbatches, const std::string& policy) {
  Schedule schedule = flush_schedule(lists, stage_ranks, num_microbatches);
  schedule.flush = false;
  schedule.policy = policy;
  schedule.prologue.resize(lists.size());
  schedule.epilogue.resize(lists.size());
  return schedule;
}

// Two stages that never drain, a minibatch of two microbatches a step: one forward, one backward in
// turn.
inline Schedule two_stage_schedule(const std::string& policy) {
  Schedule schedule =
      endless_schedule({"0F1 0B0 0F2 0B1", "1F0 1B0 1F1 1B1"}, {{0}, {1}}, 2, policy);
  schedule.prologue[0] = parse_actions("0F0");
  return schedule;
}

// Two ranks of two chunks each, stages 0, 2 and 1, 3; two microbatches.
inline Schedule chunked_schedule() {
  return flush_schedule({"0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"},
                        {{0}, {1}, {0}, {1}}, 2);
}

// The same in V shape, stages 0, 3 and 1, 2: from 1 to 2 nothing is sent. One microbatch.
inline Schedule v_schedule() {
  return flush_schedule({"0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"}, {{0}, {1}, {1}, {0}}, 1);
}

// Two stages on both of two ranks: microbatch 0 goes down the ranks, microbatch 1 up.
inline Schedule bidirectional_schedule() {
  return flush_schedule({"0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"}, {{0, 1}, {1, 0}}, 2);
}

// Runs a training schedule. "" when every action found what it needs and nothing was left over.
class Rehearsal {
 public:
  explicit Rehearsal(const LoweredSchedule& lowered)
      : lowered_(lowered),
        total_((lowered.flush ? 1 : lowered.num_steps) * lowered.microbatches_per_step),
        ranks_(lowered.ranks.size()) {}

  std::string run() {
    for (std::size_t rank = 0; rank < ranks_.size() && fault_.empty(); ++rank) {
      read_list(rank);
    }
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
    if (fault_.empty() && num_forwards_ != total_ * lowered_.num_stages) {
      return "nobody computes some microbatch";
    }
    return fault_.empty() && !flying_.empty() ? "a message was never taken" : fault_;
  }

 private:
  // Of one stage on one rank.
  struct StageState {
    std::set<int64_t> own;                 // microbatches whose F stands in the rank's list
    std::map<int64_t, int64_t> update_of;  // microbatch -> STEP that applies it, from 0
    int64_t newest = 0;
    int64_t num_steps = 0;
    std::map<int64_t, int64_t> read;  // microbatch -> version its forward read
    // Microbatches whose F, whose B or I, and whose B or W ran; those applied.
    std::set<int64_t> forwards, gradients, completed, applied;
    std::map<std::tuple<bool, int, int64_t>, int64_t> inbox;  // backward, from stage, microbatch
    const Action* reduced = nullptr;
    bool at_reduce = false;  // arrived; leaves when all its replicas have
    int num_reduces = 0;
  };
  struct RankState {
    std::size_t next = 0;
    std::map<int, StageState> stages;
    const Action* norm = nullptr;
    bool norm_used = true;
    bool at_norm = false;
    int num_norms = 0;
  };
  // From and to which rank, backward, from and to which stage, microbatch.
  using Wire = std::tuple<int, int, bool, int, int, int64_t>;

  bool fail(std::size_t rank, const std::string& text) {
    fault_ = "rank " + std::to_string(rank) + ": " + text;
    return false;
  }

  bool holds(std::size_t rank, int stage) const {
    if (stage < 0 || stage >= lowered_.num_stages) {
      return false;
    }
    const auto& holders = lowered_.stage_ranks[static_cast<std::size_t>(stage)];
    return std::find(holders.begin(), holders.end(), static_cast<int>(rank)) != holders.end();
  }

  // Who runs what, and which update applies it.
  void read_list(std::size_t rank) {
    for (int stage = 0; stage < lowered_.num_stages; ++stage) {
      if (holds(rank, stage)) {
        ranks_[rank].stages[stage];
      }
    }
    for (const Action& a : lowered_.ranks[rank]) {
      if (!holds(rank, a.stage) || a.first < 0 || a.last < a.first || a.last >= total_) {
        fail(rank, "out of range");
        return;
      }
      StageState& stage = ranks_[rank].stages[a.stage];
      for (int64_t m = a.first; m <= a.last; ++m) {
        if (a.kind == ActionKind::kForward) {
          stage.own.insert(m);
          ++num_forwards_;
          if (!runner_.try_emplace({a.stage, m}, static_cast<int>(rank)).second) {
            fail(rank, "a microbatch is computed twice");
          }
        } else if (a.kind == ActionKind::kStep) {
          stage.update_of.try_emplace(m, stage.num_steps);
        }
      }
      if (a.kind == ActionKind::kStep) {
        ++stage.num_steps;
        largest_update_ = std::max(largest_update_, a.num_microbatches());
      }
      clips_ = clips_ || a.kind == ActionKind::kNorm;
    }
  }

  // False when the rank has to wait, or after a fault.
  bool act(std::size_t rank, const Action& a) {
    StageState& state = ranks_[rank].stages.at(a.stage);
    const bool message = is_send(a.kind) || is_receive(a.kind);
    if (message != (a.peer != kNone) || (message && a.first != a.last)) {
      return fail(rank, "a peer or a range where none belongs");
    }
    if (!is_compute(a.kind) && a.kind != ActionKind::kStep && a.version != kNone) {
      return fail(rank, "a version where none belongs");
    }
    const bool backward =
        a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kReceiveBackward;
    if (message && a.peer == static_cast<int>(rank)) {
      return fail(rank, "talks to itself");
    }
    if (is_send(a.kind)) {
      if ((backward ? state.gradients : state.forwards).count(a.first) == 0) {
        return fail(rank, "sends what it has not made");
      }
      const Wire wire{static_cast<int>(rank), a.peer, backward, a.stage, a.peer_stage, a.first};
      if (!sent_.insert(wire).second) {
        return fail(rank, "sends twice");
      }
      flying_[wire] = border_value(backward, a.stage, a.first, static_cast<int>(rank));
      return true;
    }
    if (is_receive(a.kind)) {
      const auto found =
          flying_.find({a.peer, static_cast<int>(rank), backward, a.peer_stage, a.stage, a.first});
      if (found == flying_.end()) {
        return false;
      }
      if (!state.inbox.try_emplace({backward, a.peer_stage, a.first}, found->second).second) {
        return fail(rank, "receives twice");
      }
      flying_.erase(found);
      return true;
    }
    switch (a.kind) {
      case ActionKind::kReduce:
        return reduce(rank, a);
      case ActionKind::kNorm:
        return norm(rank, a);
      case ActionKind::kStep:
        return step(rank, a);
      default:
        return compute(rank, a);
    }
  }

  bool compute(std::size_t rank, const Action& a) {
    StageState& state = ranks_[rank].stages.at(a.stage);
    const bool forward = a.kind == ActionKind::kForward;
    const bool makes_gradient =
        a.kind == ActionKind::kBackward || a.kind == ActionKind::kInputGradient;
    const bool completes = a.kind == ActionKind::kBackward || a.kind == ActionKind::kWeightGradient;
    for (int64_t m = a.first; m <= a.last; ++m) {
      if ((forward || makes_gradient) && !take_inputs(rank, a.stage, m, !forward)) {
        return false;
      }
      if (!forward && state.forwards.count(m) == 0) {
        return fail(rank, "backward before forward");
      }
      if ((forward && !state.forwards.insert(m).second) ||
          (makes_gradient && !state.gradients.insert(m).second) ||
          (completes && !state.completed.insert(m).second)) {
        return fail(rank, "computes twice");
      }
      if (completes && state.gradients.count(m) == 0) {
        return fail(rank, "a weight gradient before its input's");
      }
      if (forward) {
        state.read[m] = state.newest;
        if (a.stage == 0) {
          entered_on_[m] = state.newest;
          entered_together_.try_emplace(update_of(state, m), state.newest);
        }
      }
      if (a.version != expected_version(state, m, forward) || a.version > state.newest) {
        return fail(rank, "wrong version");
      }
    }
    return true;
  }

  // From every stage that hands tensors over: in a message, or left there by the same rank.
  bool take_inputs(std::size_t rank, int stage, int64_t m, bool backward) {
    StageState& state = ranks_[rank].stages.at(stage);
    for (const StageLink& link : lowered_.links) {
      if ((backward ? link.from : link.to) != stage) {
        continue;
      }
      const int source = backward ? link.to : link.from;
      const auto maker = runner_.find({source, m});
      if (maker == runner_.end()) {
        return fail(rank, "computes on what nobody makes");
      }
      if (maker->second == static_cast<int>(rank)) {
        const StageState& other = ranks_[rank].stages.at(source);
        if ((backward ? other.gradients : other.forwards).count(m) == 0) {
          return fail(rank, "computes on what it has not made itself");
        }
        continue;
      }
      const auto input = state.inbox.find({backward, source, m});
      if (input == state.inbox.end()) {
        return fail(rank, "computes on what it has not received");
      }
      if (input->second != border_value(backward, source, m, maker->second)) {
        return fail(rank, "computes on another replica's tensor");
      }
      state.inbox.erase(input);
    }
    return true;
  }

  static int64_t update_of(const StageState& state, int64_t m) {
    const auto found = state.update_of.find(m);
    return found == state.update_of.end() ? -1 : found->second;
  }

  int64_t expected_version(const StageState& state, int64_t m, bool forward) const {
    const auto in = [](const std::map<int64_t, int64_t>& versions, int64_t key) {
      const auto found = versions.find(key);
      return found == versions.end() ? kNone : found->second;
    };
    if (lowered_.policy == "vertical_sync") {
      return in(entered_on_, m);
    }
    if (lowered_.policy == "double_buffer") {
      return std::max<int64_t>(0, update_of(state, m) - 1);
    }
    if (lowered_.policy == "vertical_newest") {
      if (forward) {
        return in(entered_together_, update_of(state, m));
      }
      int64_t lag = 0;
      // Of a copy's share of the minibatch.
      const int64_t size = std::max<int64_t>(
          1, largest_update_ / static_cast<int64_t>(lowered_.stage_ranks.front().size()));
      while (lag * (size + 1) < lowered_.num_stages) {
        ++lag;
      }
      return std::max<int64_t>(0, update_of(state, m) + 1 - lag);
    }
    if (!forward && (lowered_.policy == "stash" || lowered_.policy == "blend")) {
      return in(state.read, m);
    }
    return state.newest;
  }

  // Whether all of the rank's own microbatches of the stage in the range have their gradients.
  static bool has_all(const StageState& state, const Action& range) {
    return std::all_of(state.own.begin(), state.own.end(), [&](int64_t m) {
      return m < range.first || m > range.last || state.completed.count(m) == 1;
    });
  }

  static bool same_range(const Action& a, const Action& b) {
    return a.first == b.first && a.last == b.last;
  }

  bool reduce(std::size_t rank, const Action& a) {
    const std::vector<int>& group = lowered_.stage_ranks[static_cast<std::size_t>(a.stage)];
    StageState& state = ranks_[rank].stages.at(a.stage);
    if (group.size() == 1) {
      return fail(rank, "nothing to reduce");
    }
    if (!has_all(state, a)) {
      return fail(rank, "reduces before its backward");
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
      const StageState& theirs = peer.stages.at(a.stage);
      if (theirs.num_reduces < state.num_reduces) {
        return false;
      }
      if (theirs.num_reduces == state.num_reduces && theirs.at_reduce &&
          !same_range(lowered_.ranks[static_cast<std::size_t>(other)][peer.next], a)) {
        return fail(rank, "replicas reduce different ranges");
      }
    }
    state.at_reduce = false;
    state.reduced = &a;
    return true;
  }

  // Every rank that does anything meets all others.
  bool norm(std::size_t rank, const Action& a) {
    RankState& own = ranks_[rank];
    for (const auto& [stage, state] : own.stages) {
      const bool replicated = lowered_.stage_ranks[static_cast<std::size_t>(stage)].size() > 1;
      if (!has_all(state, a) ||
          (replicated && (state.reduced == nullptr || !same_range(*state.reduced, a)))) {
        return fail(rank, "takes the norm of what is not there");
      }
    }
    if (!own.norm_used) {
      return fail(rank, "takes the norm twice without an update");
    }
    if (!own.at_norm) {
      own.at_norm = true;
      ++own.num_norms;
    }
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      const RankState& peer = ranks_[other];
      if (lowered_.ranks[other].empty()) {
        continue;
      }
      if (peer.num_norms < own.num_norms) {
        return false;
      }
      if (peer.num_norms == own.num_norms && peer.at_norm &&
          !same_range(lowered_.ranks[other][peer.next], a)) {
        return fail(rank, "ranks take the norms of different ranges");
      }
    }
    own.at_norm = false;
    own.norm = &a;
    own.norm_used = false;
    return true;
  }

  bool step(std::size_t rank, const Action& a) {
    RankState& own = ranks_[rank];
    StageState& state = own.stages.at(a.stage);
    const bool replicated = lowered_.stage_ranks[static_cast<std::size_t>(a.stage)].size() > 1;
    if (replicated && (state.reduced == nullptr || !same_range(*state.reduced, a))) {
      return fail(rank, "update of what was not reduced");
    }
    state.reduced = nullptr;
    if (clips_ && (own.norm == nullptr || !same_range(*own.norm, a))) {
      return fail(rank, "update without its norm");
    }
    own.norm_used = true;
    if (!has_all(state, a)) {
      return fail(rank, "applies a gradient that is not there");
    }
    for (int64_t m = a.first; m <= a.last; ++m) {
      if (!state.applied.insert(m).second) {
        return fail(rank, "applies a gradient twice");
      }
    }
    if (a.version != ++state.newest) {
      return fail(rank, "makes the wrong version");
    }
    if (lowered_.flush && state.newest > 1) {
      return fail(rank, "two updates in a step");
    }
    return true;
  }

  void check_end(std::size_t rank) {
    const RankState& own = ranks_[rank];
    if (own.next < lowered_.ranks[rank].size()) {
      fail(rank, "waits for ever");
      return;
    }
    for (const auto& [stage, state] : own.stages) {
      if (state.gradients != state.own || state.completed != state.own ||
          static_cast<int64_t>(state.applied.size()) != total_) {
        fail(rank, "has left something out");
      } else if (!state.inbox.empty() || state.reduced != nullptr || !own.norm_used) {
        fail(rank, "has something left over");
      }
    }
  }

  const LoweredSchedule& lowered_;
  const int64_t total_;
  std::vector<RankState> ranks_;
  std::map<std::pair<int, int64_t>, int> runner_;  // stage, microbatch -> rank
  int64_t num_forwards_ = 0;                       // of all stages and microbatches
  int64_t largest_update_ = 1;                     // microbatches
  bool clips_ = false;
  std::map<int64_t, int64_t> entered_on_;        // microbatch -> version that stage 0 read
  std::map<int64_t, int64_t> entered_together_;  // update -> the same of its first microbatch
  std::map<Wire, int64_t> flying_;
  std::set<Wire> sent_;
  std::string fault_;
};

inline std::string rehearse(const LoweredSchedule& lowered) { return Rehearsal(lowered).run(); }

// Most (stage, microbatch) pairs whose F ran and whose B, or W, has not, in one rank's order.
inline int64_t peak_in_flight(const ActionList& list) {
  int64_t now = 0;
  int64_t peak = 0;
  for (const Action& action : list) {
    const bool ends =
        action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
    now += (action.kind == ActionKind::kForward ? 1 : ends ? -1 : 0) * action.num_microbatches();
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace millrace::testing
