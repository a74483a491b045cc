// Checks of what lowering made: messages at stage borders, updates, weight versions, reductions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "millrace/base/error.h"
#include "millrace/schedule/internal/norms.h"
#include "millrace/schedule/internal/places.h"
#include "millrace/schedule/internal/replay.h"
#include "millrace/schedule/internal/shards.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/shard.h"
#include "millrace/schedule/validate.h"

namespace millrace {
namespace {

using internal::Check;
using internal::Place;
using internal::Places;

Place place_of(std::size_t rank, std::size_t index) {
  return {static_cast<int32_t>(rank), static_cast<uint32_t>(index)};
}

bool check_tables(Check& check, const LoweredSchedule& lowered) {
  const auto refuse = [&check](const std::string& text) {
    check.findings.push_back({text, 0, 0});
    return false;
  };
  if (lowered.num_steps < 1 || lowered.microbatches_per_step < 1 ||
      lowered.num_steps > INT64_MAX / lowered.microbatches_per_step) {
    return refuse(
        fmt::format("expected at least one step of at least one microbatch, found {} of {}",
                    lowered.num_steps, lowered.microbatches_per_step));
  }
  if (lowered.num_stages < 1 ||
      lowered.stage_ranks.size() != static_cast<std::size_t>(lowered.num_stages)) {
    return refuse(fmt::format("expected the ranks of {} stages, found those of {}",
                              lowered.num_stages, lowered.stage_ranks.size()));
  }
  if (lowered.rank_stages.size() != lowered.ranks.size()) {
    return refuse(fmt::format("expected the stages of {} ranks, found those of {}",
                              lowered.ranks.size(), lowered.rank_stages.size()));
  }
  std::vector<std::vector<int>> rank_stages(lowered.ranks.size());
  for (std::size_t stage = 0; stage < lowered.stage_ranks.size(); ++stage) {
    for (const int rank : lowered.stage_ranks[stage]) {
      if (rank < 0 || static_cast<std::size_t>(rank) >= lowered.ranks.size()) {
        return refuse(fmt::format("stage {} is held by rank {}; expected a rank in 0..{}", stage,
                                  rank, static_cast<int64_t>(lowered.ranks.size()) - 1));
      }
      rank_stages[static_cast<std::size_t>(rank)].push_back(static_cast<int>(stage));
    }
  }
  for (std::size_t rank = 0; rank < rank_stages.size(); ++rank) {
    if (rank_stages[rank] != lowered.rank_stages[rank]) {
      return refuse(fmt::format("rank {} holds stages [{}] in one table and [{}] in the other",
                                rank, fmt::join(rank_stages[rank], ", "),
                                fmt::join(lowered.rank_stages[rank], ", ")));
    }
  }
  for (const StageLink& link : lowered.links) {
    if (link.from < 0 || link.from >= link.to || link.to >= lowered.num_stages) {
      return refuse(
          fmt::format("stage {} hands tensors to stage {}; expected an earlier stage and a "
                      "later one of {}",
                      link.from, link.to, lowered.num_stages));
    }
  }
  return true;
}

// Sends and receives by the rank they stand on, and which of them a compute action accounts for.
class Borders {
 public:
  Borders(Check& check, const Places& places, const LoweredSchedule& lowered)
      : check_(check), places_(places), lowered_(lowered) {
    for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
      for (std::size_t i = 0; i < check.lists[rank].size(); ++i) {
        collect(place_of(rank, i));
      }
    }
  }

  void check() {
    for (const StageLink& link : lowered_.links) {
      for (int64_t m = 0; m < check_.num_microbatches; ++m) {
        check_border(places_.at(ActionKind::kForward, link.from, m), ActionKind::kSendForward,
                     places_.at(ActionKind::kForward, link.to, m), ActionKind::kReceiveForward,
                     link, m);
        check_border(places_.gradient(link.to, m), ActionKind::kSendBackward,
                     places_.gradient(link.from, m), ActionKind::kReceiveBackward,
                     {link.to, link.from}, m);
      }
    }
    for (const auto& [key, entry] : messages_) {
      const Action& action = check_.at(entry.place);
      if (!entry.used) {
        check_.add(entry.place, is_send(action.kind)
                                    ? "no action on this rank makes what it sends"
                                    : "no action on this rank uses what it receives");
      } else if (!partner(entry.place).known()) {
        check_.add(entry.place, fmt::format("rank {} has no {} for it", action.peer,
                                            to_string(partner_kind(action.kind))));
      }
    }
  }

  // The send that a receive takes, or the reverse; unknown when the peer has none.
  Place partner(Place place) const {
    const Action& action = check_.at(place);
    if (action.stage < 0 || action.stage >= check_.num_stages || action.peer < 0 ||
        static_cast<std::size_t>(action.peer) >= check_.lists.size()) {
      return Place();
    }
    const auto found = messages_.find(
        {action.peer, partner_kind(action.kind), action.peer_stage, action.first, action.stage});
    const bool mutual =
        found != messages_.end() && check_.at(found->second.place).peer == place.rank;
    return mutual ? found->second.place : Place();
  }

 private:
  // Rank, kind, stage, microbatch, stage at the other end.
  using Key = std::tuple<int, ActionKind, int, int64_t, int>;
  struct Entry {
    Place place;
    bool used = false;
  };

  static ActionKind partner_kind(ActionKind kind) {
    switch (kind) {
      case ActionKind::kSendForward:
        return ActionKind::kReceiveForward;
      case ActionKind::kReceiveForward:
        return ActionKind::kSendForward;
      case ActionKind::kSendBackward:
        return ActionKind::kReceiveBackward;
      default:
        return ActionKind::kSendBackward;
    }
  }

  void collect(Place place) {
    const Action& action = check_.at(place);
    if (!is_send(action.kind) && !is_receive(action.kind)) {
      if (action.peer != kNone) {
        check_.add(place, "only sends and receives have a peer");
      }
      return;
    }
    if (!internal::check_bounds(check_, place)) {
      return;
    }
    if (action.peer < 0 || static_cast<std::size_t>(action.peer) >= check_.lists.size()) {
      check_.add(place, fmt::format("expected a peer in 0..{}, found {}",
                                    static_cast<int64_t>(check_.lists.size()) - 1, action.peer));
      return;
    }
    if (action.peer == place.rank) {
      check_.add(place, "a message to or from its own rank, where what is made stays");
      return;
    }
    if (action.peer_stage < 0 || action.peer_stage >= check_.num_stages) {
      check_.add(place, fmt::format("expected a message between stages 0..{}, found one with {}",
                                    check_.num_stages - 1, action.peer_stage));
      return;
    }
    if (action.first != action.last || action.version != kNone) {
      check_.add(place, "a message is of one microbatch and has no weight version");
      return;
    }
    if (lowered_.replica_of(action.peer, action.peer_stage) < 0) {
      check_.add(place,
                 fmt::format("rank {} does not hold stage {}", action.peer, action.peer_stage));
      return;
    }
    const auto [entry, added] = messages_.try_emplace(
        {place.rank, action.kind, action.stage, action.first, action.peer_stage}, Entry{place});
    if (!added) {
      check_.add(place, fmt::format("already stands as action {}; expected it once",
                                    entry->second.place.index));
    }
  }

  // Between the compute action that makes a tensor and the one that uses it there are a send right
  // on the one's rank, after it, and a receive on the other's, before it; on one rank it only has
  // to come first.
  void check_border(Place maker, ActionKind send, Place user, ActionKind receive, StageLink way,
                    int64_t m) {
    const bool same_rank = maker.known() && user.known() && maker.rank == user.rank;
    if (same_rank && user.index < maker.index) {
      check_.add(user, fmt::format("expected it after {}, which is action {} and makes its tensor",
                                   to_string(check_.at(maker)), maker.index));
    }
    if (maker.known()) {
      check_side(maker, send, user, way.to, m, !same_rank && user.known());
    }
    if (user.known()) {
      check_side(user, receive, maker, way.from, m, !same_rank && maker.known());
    }
  }

  void check_side(Place own, ActionKind kind, Place other, int other_stage, int64_t m,
                  bool expected) {
    const auto found = messages_.find({own.rank, kind, check_.at(own).stage, m, other_stage});
    if (found == messages_.end()) {
      if (expected) {
        check_.add(own, fmt::format("expected {} of microbatch {} {} it, {} rank {}; there is none",
                                    to_string(kind), m, is_send(kind) ? "after" : "before",
                                    is_send(kind) ? "to" : "from", other.rank));
      }
      return;
    }
    const Place message = found->second.place;
    found->second.used = true;
    if (expected && check_.at(message).peer != other.rank) {
      check_.add(message, fmt::format("expected peer {}, which runs {}", other.rank,
                                      internal::in_words(check_.at(other))));
    }
    if (is_send(kind) ? message.index < own.index : message.index > own.index) {
      check_.add(message, fmt::format("expected it {} {}, which is action {}",
                                      is_send(kind) ? "after" : "before", to_string(check_.at(own)),
                                      own.index));
    }
  }

  Check& check_;
  const Places& places_;
  const LoweredSchedule& lowered_;
  std::map<Key, Entry> messages_;
};

// REDUCEs of one stage on one rank, in order.
using Reduces = std::map<std::pair<int, int>, std::vector<Place>>;  // by rank and stage

// STEPs follow all backwards they apply and apply each once; REDUCEs come before them when there
// are replicas. Those of sharded stages are internal::Shards' matter.
class Updates {
 public:
  Updates(Check& check, const Places& places, const LoweredSchedule& lowered)
      : check_(check), places_(places), lowered_(lowered), flush_(lowered.flush) {}

  void check() {
    for (std::size_t rank = 0; rank < check_.lists.size(); ++rank) {
      check_rank(rank);
    }
    for (int stage = 0; stage < check_.num_stages; ++stage) {
      const std::vector<int>& replicas = check_.holders[static_cast<std::size_t>(stage)];
      for (const int rank : replicas) {
        compare_reduces(stage, replicas.front(), rank);
      }
    }
  }

  const Reduces& reduces() const { return reduces_; }

 private:
  // What has been seen of one stage on the rank at hand.
  struct StageState {
    std::map<int64_t, Place> applied;  // microbatch -> its STEP
    std::optional<Place> unused_reduce;
    int num_steps = 0;
  };

  std::size_t num_replicas(int stage) const {
    return check_.holders[static_cast<std::size_t>(stage)].size();
  }

  void check_rank(std::size_t rank) {
    const ActionList& list = check_.lists[rank];
    std::map<int, StageState> stages;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action& action = list[i];
      const Place place = place_of(rank, i);
      const bool is_step = action.kind == ActionKind::kStep;
      if ((!is_step && action.kind != ActionKind::kReduce) ||
          !internal::check_bounds(check_, place)) {
        continue;
      }
      if (check_.forward_only) {
        check_.add(place, "an update in a forward-only program; remove it");
        continue;
      }
      const bool sharded = is_sharded(lowered_, action.stage);
      if (!is_step && sharded) {
        continue;
      }
      check_order(place);
      StageState& stage = stages[action.stage];
      if (!is_step) {
        add_reduce(place);
        if (stage.unused_reduce) {
          check_.add(*stage.unused_reduce, "no STEP applies what it reduces");
        }
        stage.unused_reduce = place;
        continue;
      }
      ++stage.num_steps;
      if (flush_ && stage.num_steps > 1) {
        check_.add(place, "expected one STEP in a step with a flush, this is another");
      }
      if (!sharded) {
        check_reduced(place, stage.unused_reduce);
      }
      stage.unused_reduce.reset();
      for (int64_t m = action.first; m <= action.last; ++m) {
        const auto [entry, added] = stage.applied.try_emplace(m, place);
        if (!added) {
          check_.add(place, fmt::format("microbatch {} was applied by action {} already", m,
                                        entry->second.index));
        }
      }
    }
    for (const auto& [index, stage] : stages) {
      if (stage.unused_reduce) {
        check_.add(*stage.unused_reduce, "no STEP applies what it reduces");
      }
    }
    report_unapplied(rank, stages);
  }

  // Every backward of the range stands before its REDUCE or STEP.
  void check_order(Place place) {
    const Action& action = check_.at(place);
    for (int64_t m = action.first; m <= action.last; ++m) {
      const Place backward = places_.last_backward(action.stage, m);
      if (backward.known() && backward.rank == place.rank && backward.index > place.index) {
        check_.add(place,
                   fmt::format("applies microbatch {} before its backward, which is action {}", m,
                               backward.index));
      }
    }
  }

  void add_reduce(Place place) {
    if (num_replicas(check_.at(place).stage) == 1) {
      check_.add(place, "its stage has one replica; there is nothing to reduce");
    }
    reduces_[{place.rank, check_.at(place).stage}].push_back(place);
  }

  void check_reduced(Place step, const std::optional<Place>& reduce) {
    const Action& action = check_.at(step);
    const std::size_t replicas = num_replicas(action.stage);
    if (replicas > 1 && (!reduce || check_.at(*reduce).first != action.first ||
                         check_.at(*reduce).last != action.last)) {
      check_.add(step, fmt::format("its stage has {} replicas; expected a REDUCE of the same "
                                   "microbatches before it",
                                   replicas));
    }
  }

  void report_unapplied(std::size_t rank, std::map<int, StageState>& stages) {
    if (check_.forward_only) {
      return;
    }
    const ActionList& list = check_.lists[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool completes =
          list[i].kind == ActionKind::kBackward || list[i].kind == ActionKind::kWeightGradient;
      if (!completes || !places_.usable(place_of(rank, i))) {
        continue;
      }
      for (int64_t m = list[i].first; m <= list[i].last; ++m) {
        if (!stages[list[i].stage].applied.contains(m)) {
          check_.add(place_of(rank, i),
                     fmt::format("no STEP applies the gradient of microbatch {}", m));
        }
      }
    }
  }

  void compare_reduces(int stage, int first, int rank) {
    const std::vector<Place>& expected = reduces_[{first, stage}];
    const std::vector<Place>& found = reduces_[{rank, stage}];
    for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
      if (!(check_.at(expected[i]) == check_.at(found[i]))) {
        check_.add(found[i], fmt::format("replica rank {} reduces {} at this point", first,
                                         to_string(check_.at(expected[i]))));
      }
    }
    if (expected.size() != found.size()) {
      const bool more = found.size() > expected.size();
      check_.add(more ? found[expected.size()] : expected[found.size()],
                 fmt::format("rank {} has no REDUCE to meet it", more ? first : rank));
    }
  }

  Check& check_;
  const Places& places_;
  const LoweredSchedule& lowered_;
  bool flush_;
  Reduces reduces_;
};

void check_versions(Check& check, const std::string& policy_name) {
  const PolicyEntry* policy = nullptr;
  if (!check.forward_only) {
    try {
      policy = &find_policy(policy_name);
    } catch (const Error& error) {
      check.findings.push_back({error.message(), 0, 0});
      return;
    }
  }
  ActionLists all_expected = check.lists;
  for (ActionList& list : all_expected) {
    for (Action& action : list) {
      action.version = kNone;
      if (action.first < kNone || action.last >= check.num_microbatches) {
        return;  // reported, and a policy must not walk a range without end
      }
    }
  }
  if (policy != nullptr) {
    policy->annotate(all_expected);
  }
  for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
    const ActionList& expected = all_expected[rank];
    std::map<int, int64_t> newest;  // of each stage
    for (std::size_t i = 0; i < check.lists[rank].size(); ++i) {
      const Action& action = check.lists[rank][i];
      if (action.last != expected[i].last) {
        check.add(place_of(rank, i),
                  fmt::format("one backward of forwards that read different versions; policy {} "
                              "needs it cut after microbatch {}",
                              policy->name, expected[i].last));
        break;  // what follows is out of step
      }
      const bool is_step = action.kind == ActionKind::kStep;
      if (!is_step && !is_compute(action.kind)) {
        continue;
      }
      int64_t& made = newest[action.stage];
      const char* verb = is_step ? "makes" : "reads";
      if (policy == nullptr && action.version != kNone) {
        check.add(place_of(rank, i), "a weight version in a forward-only program");
      } else if (!is_step && action.version > made) {
        check.add(place_of(rank, i),
                  fmt::format("{} version {} when {} is the newest made; expected {}", verb,
                              action.version, made, expected[i].version));
      } else if (action.version != expected[i].version) {
        check.add(place_of(rank, i),
                  fmt::format("{} version {}; policy {} says {}", verb, action.version,
                              policy->name, expected[i].version));
      }
      made += is_step ? 1 : 0;
    }
  }
}

// A receive waits for its send; a REDUCE or GATHER for all other replicas to reach theirs, a NORM
// for all other ranks.
internal::Requirements lowered_requirements(const Check& check, const Borders& borders,
                                            const Reduces& reduces, const internal::Norms& norms,
                                            const internal::Shards& shards) {
  return [&](Place place, std::vector<Place>& required) {
    const Action& action = check.at(place);
    shards.add_requirements(place, required);
    if (is_receive(action.kind)) {
      const Place send = borders.partner(place);
      if (send.known()) {
        required.push_back(send);
      }
      return;
    }
    if (action.kind == ActionKind::kNorm) {
      norms.add_requirements(place, required);
      return;
    }
    if (action.kind != ActionKind::kReduce || action.stage < 0 ||
        action.stage >= check.num_stages) {
      return;
    }
    const auto of = [&](int rank) -> const std::vector<Place>& {
      static const std::vector<Place> none;
      const auto known = reduces.find({rank, action.stage});
      return known == reduces.end() ? none : known->second;
    };
    const std::vector<Place>& own = of(place.rank);
    const auto found = std::find_if(own.begin(), own.end(),
                                    [place](Place reduce) { return reduce.index == place.index; });
    const auto number = static_cast<std::size_t>(found - own.begin());
    for (const int rank : check.holders[static_cast<std::size_t>(action.stage)]) {
      const std::vector<Place>& others = of(rank);
      if (number < others.size() && rank != place.rank && others[number].index > 0) {
        required.push_back({others[number].rank, others[number].index - 1});
      }
    }
  };
}

}  // namespace

std::vector<Finding> find_faults(const LoweredSchedule& lowered) {
  Check check{.lists = lowered.ranks,
              .num_stages = lowered.num_stages,
              .num_microbatches = 0,
              .holders = lowered.stage_ranks,
              .forward_only = lowered.policy.empty(),
              .findings = {}};
  if (!check_tables(check, lowered)) {
    return check.findings;
  }
  check.num_microbatches = lowered.microbatches_per_step * (lowered.flush ? 1 : lowered.num_steps);
  if (!internal::check_shape(check)) {
    return check.findings;
  }
  const Places places(check);
  internal::check_pairs(check, places);
  Borders borders(check, places, lowered);
  borders.check();
  Updates updates(check, places, lowered);
  updates.check();
  internal::Shards shards(check, lowered);
  shards.check();
  internal::Norms norms(check);
  norms.check();
  check_versions(check, lowered.policy);
  internal::check_deadlock(check,
                           lowered_requirements(check, borders, updates.reduces(), norms, shards));
  return check.findings;
}

}  // namespace millrace
