#include "millrace/schedule/language/build.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/core/grid.h"
#include "millrace/schedule/internal/builtins.h"
#include "millrace/schedule/internal/list_schedule.h"
#include "millrace/schedule/validate.h"

namespace millrace::language {
namespace {

// Turns of all loops of one schedule; more would be a slip, and take minutes.
constexpr int64_t kMostTurns = 20'000'000;
// Slots that list scheduling may count over all actions.
constexpr int64_t kMostTime = int64_t{1} << 53;

struct Placed {
  Action action;
  Spot spot;
};
using PlacedList = std::vector<Placed>;

// The statements that P, M and V choose.
struct Chosen {
  std::vector<const Statement*> lets;
  const Statement* forwards = nullptr;
  const Statement* backwards = nullptr;
  const Statement* order = nullptr;
  const Statement* list = nullptr;
  const Statement* actions = nullptr;
  const Statement* warm_up = nullptr;
  const Statement* interleave = nullptr;
  const Statement* in_flight = nullptr;
  const Statement* split = nullptr;
};

class Builder {
 public:
  Builder(const Program& program, const ScheduleConfig& config)
      : program_(program), config_(config), values_(program) {
    config_.chunks = config.chunks == 0 ? default_chunks(program) : config.chunks;
    values_.set(kP, config.num_ranks);
    values_.set(kM, config.num_microbatches);
    values_.set(kV, config_.chunks);
    choose(program.statements);
  }

  // The first requirement that does not hold.
  const Requirement* broken_requirement() const {
    for (const Requirement& requirement : program_.requirements) {
      if (values_.of(requirement.condition) == 0) {
        return &requirement;
      }
    }
    return nullptr;
  }

  // The ranks of all stages, of each direction.
  std::vector<std::vector<int>> routes() {
    std::vector<std::vector<int>> routes;
    const Placement& placement = program_.placement;
    const int ranks = config_.num_ranks;
    if (placement.kind == Placement::Kind::kExplicit) {
      for (const std::vector<Step>& steps : placement.routes) {
        lay(steps, routes.emplace_back());
      }
    } else {
      const internal::Placement positions = placement.kind == Placement::Kind::kV
                                                ? internal::v_placement(ranks)
                                                : internal::looped_placement(ranks, config_.chunks);
      for (const std::vector<int>& held : positions) {
        routes.resize(1);
        routes[0].push_back(held.front());
      }
      if (placement.both_ways) {
        routes.push_back(routes[0]);
        for (int& rank : routes[1]) {
          rank = ranks - 1 - rank;
        }
      }
    }
    for (const std::vector<int>& route : routes) {
      if (route.size() != routes[0].size() || route.empty()) {
        throw refuse(placement.spot,
                     fmt::format("expected as many stages in every block, at least one, found {}",
                                 fmt::join(sizes(routes), " and ")));
      }
    }
    return routes;
  }

  Schedule build() {
    refuse_operations();
    Schedule schedule = start();
    check_parts_of_order();
    if (!program_.flush) {
      build_endless(schedule);
      return schedule;
    }
    std::vector<PlacedList> lists = all_lists();
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (const Placed& placed : lists[rank]) {
        schedule.period[rank].push_back(placed.action);
      }
    }
    check_lists(schedule, lists);
    check_in_flight(lists);
    return schedule;
  }

 private:
  Error refuse(Spot spot, const std::string& message) const {
    return error_at(ErrorCode::kInvalidArgument, program_.file, spot, message);
  }
  std::string shape() const {
    return fmt::format("P = {}, M = {}, V = {}", config_.num_ranks, config_.num_microbatches,
                       config_.chunks);
  }
  static std::vector<std::size_t> sizes(const std::vector<std::vector<int>>& routes) {
    std::vector<std::size_t> result;
    for (const std::vector<int>& route : routes) {
      result.push_back(route.size());
    }
    return result;
  }

  void choose(const std::vector<Statement>& statements) {
    using Kind = Statement::Kind;
    for (const Statement& statement : statements) {
      if (statement.kind == Kind::kLet) {
        chosen_.lets.push_back(&statement);
        if (!statement.of_rank) {
          values_.set(statement.slot, values_.of(statement.value));
        }
      } else if (statement.kind == Kind::kWhen) {
        choose(values_.of(statement.value) != 0 ? statement.then : statement.otherwise);
      } else {
        const Statement** places[] = {&chosen_.forwards,   &chosen_.backwards, &chosen_.order,
                                      &chosen_.list,       &chosen_.actions,   &chosen_.warm_up,
                                      &chosen_.interleave, &chosen_.in_flight, &chosen_.split};
        const Statement*& place =
            *places[static_cast<int>(statement.kind) - static_cast<int>(Kind::kForwards)];
        if (place != nullptr) {
          throw refuse(statement.spot, fmt::format("the same statement stands in line {} already",
                                                   place->spot.line));
        }
        place = &statement;
      }
    }
  }

  void refuse_operations() const {
    if (!program_.operations.empty()) {
      const Operation& operation = program_.operations.front();
      throw error_at(
          ErrorCode::kUnsupported, program_.file, operation.spot,
          fmt::format(
              "operation {} {} {} can be written, and nothing here executes it yet; remove "
              "it{}",
              operation.name, operation.before ? "before" : "after", to_string(operation.action),
              operation.name == "recompute" ? ", or write `recompute stage` or layer" : ""));
    }
  }

  // Name, sizes and placement; what each rank holds.
  Schedule start() {
    const std::vector<std::vector<int>> all = routes();
    internal::Placement placement(all[0].size());
    own_.resize(static_cast<std::size_t>(config_.num_ranks));
    const int64_t num = config_.num_microbatches;
    const auto count = static_cast<int64_t>(all.size());
    for (int64_t route = 0; route < count; ++route) {
      const std::vector<int>& ranks = all[static_cast<std::size_t>(route)];
      internal::Route& made = routes_.emplace_back();
      made.ranks = ranks;
      for (int64_t m = route * num / count; m < (route + 1) * num / count; ++m) {
        made.microbatches.push_back(m);
      }
      for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
        std::vector<int>& held = placement[stage];
        if (std::find(held.begin(), held.end(), ranks[stage]) == held.end()) {
          held.push_back(ranks[stage]);
        }
        std::vector<int64_t>& own =
            own_[static_cast<std::size_t>(ranks[stage])][static_cast<int>(stage)];
        own.insert(own.end(), made.microbatches.begin(), made.microbatches.end());
      }
    }
    Schedule schedule = internal::placed_schedule(program_.name.c_str(), config_,
                                                  std::move(placement), program_.flush);
    schedule.policy = program_.policies.front();
    return schedule;
  }

  void check_parts_of_order() const {
    std::vector<const Statement*> orders;
    for (const Statement* part :
         {chosen_.forwards != nullptr ? chosen_.forwards : chosen_.backwards, chosen_.order,
          chosen_.list, chosen_.actions}) {
      if (part != nullptr) {
        orders.push_back(part);
      }
    }
    if (orders.empty()) {
      throw refuse(program_.end, fmt::format("the order is missing for {}; expected forwards and "
                                             "backwards, order, list or actions",
                                             shape()));
    }
    if (orders.size() > 1) {
      throw refuse(orders[1]->spot,
                   fmt::format("line {} says the order already; keep one", orders[0]->spot.line));
    }
    if ((chosen_.forwards == nullptr) != (chosen_.backwards == nullptr)) {
      throw refuse(orders[0]->spot, chosen_.forwards == nullptr
                                        ? "expected `forwards` beside `backwards`"
                                        : "expected `backwards` beside `forwards`");
    }
    for (const Statement* part : {chosen_.warm_up, chosen_.interleave}) {
      if (part != nullptr && chosen_.forwards == nullptr) {
        throw refuse(part->spot,
                     "this goes with forwards and backwards; the order here says where "
                     "each action stands");
      }
    }
    if (chosen_.split != nullptr && chosen_.actions != nullptr) {
      throw refuse(chosen_.split->spot, "actions say I and W themselves; remove `split`");
    }
    if (chosen_.list != nullptr) {
      check_scores();
    }
  }

  void check_scores() const {
    std::vector<ActionKind> kinds = {ActionKind::kForward, ActionKind::kBackward};
    if (chosen_.split != nullptr) {
      kinds = {ActionKind::kForward, ActionKind::kInputGradient, ActionKind::kWeightGradient};
    }
    const auto& scores = chosen_.list->list.scores;
    for (const ActionKind kind : kinds) {
      if (std::none_of(scores.begin(), scores.end(),
                       [&](const auto& score) { return score.first == kind; })) {
        throw refuse(chosen_.list->spot, fmt::format("expected a score of {}", to_string(kind)));
      }
    }
    if (scores.size() != kinds.size()) {
      throw refuse(chosen_.list->spot,
                   chosen_.split != nullptr
                       ? "a split backward has scores of I and W, not of B"
                       : "scores of I and W need `split`; a whole backward has one of B");
    }
    const int64_t* times = chosen_.list->list.times;
    const auto longest = *std::max_element(times, times + 3);
    const auto cells = static_cast<int64_t>(routes_[0].ranks.size()) * config_.num_microbatches;
    if (longest > kMostTime / (3 * cells)) {
      throw refuse(chosen_.list->spot,
                   "times as long as these cannot be added up; use smaller ones");
    }
  }

  void set_rank(int rank) {
    values_.set(kRank, rank);
    for (const Statement* let : chosen_.lets) {
      if (let->of_rank) {
        values_.set(let->slot, values_.of(let->value));
      }
    }
  }

  void turn(Spot spot) {
    if (++turns_ > kMostTurns) {
      throw refuse(spot, fmt::format("more than {} turns of loops for {}", kMostTurns, shape()));
    }
  }

  // Calls visit(step) for every step that does something, in order.
  template <typename Visit>
  void walk(const std::vector<Step>& steps, const Visit& visit) {
    for (const Step& step : steps) {
      switch (step.kind) {
        case Step::Kind::kAction:
        case Step::Kind::kRank:
          turn(step.spot);
          visit(step);
          break;
        case Step::Kind::kFor: {
          const int64_t end = values_.of(step.values[1]);
          for (int64_t value = values_.of(step.values[0]); value < end; ++value) {
            turn(step.spot);
            values_.set(step.slot, value);
            walk(step.body, visit);
          }
          break;
        }
        case Step::Kind::kRepeat:
          for (int64_t left = values_.of(step.values[0]); left > 0; --left) {
            turn(step.spot);
            walk(step.body, visit);
          }
          break;
        case Step::Kind::kIf:
          walk(values_.of(step.values[0]) != 0 ? step.body : step.otherwise, visit);
          break;
      }
    }
  }

  void lay(const std::vector<Step>& steps, std::vector<int>& route) {
    walk(steps, [&](const Step& step) {
      const int64_t rank = values_.of(step.values[0]);
      if (rank < 0 || rank >= config_.num_ranks) {
        throw refuse(step.spot, fmt::format("stage {}: expected a rank in 0..{}, found {} ({})",
                                            route.size(), config_.num_ranks - 1, rank, shape()));
      }
      route.push_back(static_cast<int>(rank));
    });
  }

  PlacedList actions_of(const std::vector<Step>& steps, int rank) {
    const auto& own = own_[static_cast<std::size_t>(rank)];
    PlacedList list;
    std::map<std::pair<ActionKind, int>, std::size_t> nums;
    walk(steps, [&](const Step& step) {
      const int64_t stage = values_.of(step.values[0]);
      const auto held =
          stage >= 0 && stage <= INT32_MAX ? own.find(static_cast<int>(stage)) : own.end();
      if (held == own.end()) {
        std::vector<int> stages;
        for (const auto& [known, microbatches] : own) {
          stages.push_back(known);
        }
        throw refuse(
            step.values[0].spot,
            fmt::format("expected a stage of rank {}, which holds {}, found {} ({})", rank,
                        stages.empty() ? "none" : fmt::format("{}", fmt::join(stages, ", ")), stage,
                        shape()));
      }
      const std::vector<int64_t>& microbatches = held->second;
      int64_t microbatch = 0;
      if (step.values.size() > 1) {
        microbatch = values_.of(step.values[1]);
        if (microbatch < 0 || microbatch >= config_.num_microbatches) {
          throw refuse(step.values[1].spot,
                       fmt::format("expected a microbatch in 0..{}, found {} (rank {}, {})",
                                   config_.num_microbatches - 1, microbatch, rank, shape()));
        }
      } else {
        std::size_t& next = nums[{step.action, held->first}];
        if (next >= microbatches.size()) {
          throw refuse(
              step.spot,
              fmt::format("one {} of stage {} too many: all {} microbatches have theirs on "
                          "rank {} ({})",
                          to_string(step.action), stage, microbatches.size(), rank, shape()));
        }
        microbatch = microbatches[next++];
      }
      list.push_back({Action::of(step.action, held->first, microbatch), step.spot});
    });
    return list;
  }

  int64_t warm_up_of(int64_t most) const {
    if (chosen_.warm_up == nullptr) {
      return 0;
    }
    const int64_t value = values_.of(chosen_.warm_up->value);
    if (value < 0) {
      throw refuse(chosen_.warm_up->spot,
                   fmt::format("expected a warm-up of 0 forwards or more, found {} (rank {}, {})",
                               value, values_.at(kRank), shape()));
    }
    return std::min(value, most);
  }

  PlacedList alternate(int rank) {
    const PlacedList forwards = actions_of(chosen_.forwards->steps, rank);
    const PlacedList backwards = actions_of(chosen_.backwards->steps, rank);
    static constexpr int64_t kInTurn[2] = {1, 1};
    const int64_t* in_turn = chosen_.interleave == nullptr ? kInTurn : chosen_.interleave->numbers;
    PlacedList list;
    std::size_t forward = 0;
    std::size_t backward = 0;
    for (auto left = warm_up_of(static_cast<int64_t>(forwards.size())); left > 0; --left) {
      list.push_back(forwards[forward++]);
    }
    while (forward < forwards.size() || backward < backwards.size()) {
      for (int64_t i = 0; i < in_turn[0] && forward < forwards.size(); ++i) {
        list.push_back(forwards[forward++]);
      }
      for (int64_t i = 0; i < in_turn[1] && backward < backwards.size(); ++i) {
        list.push_back(backwards[backward++]);
      }
    }
    return list;
  }

  // Each B becomes its I, and its W goes where `split` says.
  PlacedList split(const PlacedList& whole) const {
    const Statement& rule = *chosen_.split;
    int64_t lag = static_cast<int64_t>(whole.size());
    if (rule.weights == WeightPlace::kLag) {
      lag = values_.of(rule.value);
      if (lag < 0) {
        throw refuse(rule.spot, fmt::format("expected a lag of 0 or more, found {} (rank {}, {})",
                                            lag, values_.at(kRank), shape()));
      }
    }
    PlacedList list;
    PlacedList weights;
    std::size_t done = 0;
    for (const Placed& placed : whole) {
      if (placed.action.kind != ActionKind::kBackward) {
        list.push_back(placed);
        continue;
      }
      Placed half = placed;
      half.action.kind = ActionKind::kInputGradient;
      list.push_back(half);
      half.action.kind = ActionKind::kWeightGradient;
      weights.push_back(half);
      if (static_cast<int64_t>(weights.size()) > lag) {
        list.push_back(weights[done++]);
      }
    }
    weights.erase(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(done));
    if (rule.weights == WeightPlace::kTogether) {
      join_microbatches(weights);
    }
    list.insert(list.end(), weights.begin(), weights.end());
    return list;
  }

  static void join_microbatches(PlacedList& weights) {
    std::stable_sort(weights.begin(), weights.end(), [](const Placed& a, const Placed& b) {
      return std::pair(a.action.stage, a.action.first) < std::pair(b.action.stage, b.action.first);
    });
    PlacedList joined;
    for (const Placed& next : weights) {
      if (!joined.empty() && joined.back().action.stage == next.action.stage &&
          joined.back().action.last + 1 == next.action.first) {
        joined.back().action.last = next.action.last;
      } else {
        joined.push_back(next);
      }
    }
    weights = std::move(joined);
  }

  std::vector<PlacedList> all_lists() {
    if (chosen_.list != nullptr) {
      return listed();
    }
    std::vector<PlacedList> lists;
    for (int rank = 0; rank < config_.num_ranks; ++rank) {
      if (chosen_.actions != nullptr) {
        lists.push_back(written(rank));
        continue;
      }
      set_rank(rank);
      lists.push_back(chosen_.order != nullptr ? actions_of(chosen_.order->steps, rank)
                                               : alternate(rank));
      if (chosen_.split != nullptr) {
        lists.back() = split(lists.back());
      }
    }
    return lists;
  }

  PlacedList written(int rank) const {
    const auto& actions = chosen_.actions->actions;
    if (actions.size() != static_cast<std::size_t>(config_.num_ranks)) {
      throw refuse(chosen_.actions->spot, fmt::format("expected the actions of {} ranks, found {}",
                                                      config_.num_ranks, actions.size()));
    }
    PlacedList list;
    for (const auto& [action, spot] : actions[static_cast<std::size_t>(rank)]) {
      list.push_back({action, spot});
    }
    return list;
  }

  std::vector<PlacedList> listed() {
    const ListOrder& order = chosen_.list->list;
    internal::ListRule rule;
    rule.split = chosen_.split != nullptr;
    rule.forward = order.times[0];
    rule.backward = order.times[1];
    rule.weight = order.times[2];
    for (int rank = 0; chosen_.in_flight != nullptr && rank < config_.num_ranks; ++rank) {
      rule.caps.push_back(in_flight_of(rank));
    }
    rule.score = [&](ActionKind kind, int stage, int64_t index) {
      values_.set(kStage, stage);
      values_.set(kIndex, index);
      for (const auto& [known, score] : order.scores) {
        if (known == kind) {
          return static_cast<double>(values_.of(score));
        }
      }
      return 0.0;
    };
    const auto made = internal::list_schedule(config_.num_ranks, routes_, rule);
    if (!made) {
      throw refuse(
          chosen_.in_flight->spot,
          fmt::format("with so few in flight every rank waits for another; allow more ({})",
                      shape()));
    }
    std::vector<PlacedList> lists;
    for (const ActionList& list : made->lists) {
      PlacedList& placed = lists.emplace_back();
      for (const Action& action : list) {
        placed.push_back({action, chosen_.list->spot});
      }
    }
    return lists;
  }

  int in_flight_of(int rank) {
    set_rank(rank);
    const int64_t value = values_.of(chosen_.in_flight->value);
    if (value < 1) {
      throw refuse(chosen_.in_flight->spot,
                   fmt::format("expected at least 1 in flight, found {} (rank {}, {})", value, rank,
                               shape()));
    }
    return static_cast<int>(std::min<int64_t>(value, INT32_MAX));
  }

  // What the author states of an order that says itself where each forward stands.
  void check_in_flight(const std::vector<PlacedList>& lists) {
    for (int rank = 0; chosen_.in_flight != nullptr && rank < config_.num_ranks; ++rank) {
      const int most = in_flight_of(rank);
      int64_t stash = 0;
      for (const Placed& placed : lists[static_cast<std::size_t>(rank)]) {
        const ActionKind kind = placed.action.kind;
        if (kind == ActionKind::kForward) {
          stash += placed.action.num_microbatches();
        } else if (kind != ActionKind::kInputGradient) {
          stash -= placed.action.num_microbatches();
        }
        if (stash > most) {
          throw refuse(placed.spot,
                       fmt::format("{} on rank {} is number {} in flight; in_flight allows {} ({})",
                                   to_string(placed.action), rank, stash, most, shape()));
        }
      }
    }
  }

  Spot spot_of_order() const {
    const Statement* order = chosen_.forwards != nullptr ? chosen_.forwards
                             : chosen_.order != nullptr  ? chosen_.order
                             : chosen_.list != nullptr   ? chosen_.list
                                                         : chosen_.actions;
    return order->spot;
  }

  // The first finding at the action's own place in the file, where it has one.
  void check_lists(const Schedule& schedule, const std::vector<PlacedList>& lists) const {
    const std::vector<Finding> findings =
        find_faults(schedule.period, schedule.stage_ranks, schedule.num_microbatches);
    if (findings.empty()) {
      return;
    }
    const Finding& first = findings.front();
    const auto rank = static_cast<std::size_t>(first.rank);
    // The others speak of what is missing, which has no place.
    const bool of_action =
        (first.text.starts_with("rank ") || first.text.starts_with("deadlock")) &&
        first.index < lists[rank].size();
    const std::string more =
        findings.size() > 1 ? fmt::format("; and {} more", findings.size() - 1) : "";
    throw refuse(of_action ? lists[rank][first.index].spot : spot_of_order(),
                 fmt::format("the order for {} does not hold: {}{}\n{}", shape(), first.text, more,
                             order_grid(schedule.period, {{first.rank, first.index}})));
  }

  // Without a flush: step after step in the same order, each rank `warm_up` forwards ahead.
  void build_endless(Schedule& schedule) {
    if (chosen_.forwards == nullptr || chosen_.split != nullptr || chosen_.in_flight != nullptr ||
        chosen_.interleave != nullptr) {
      throw error_at(ErrorCode::kUnsupported, program_.file, spot_of_order(),
                     "without a flush the order is forwards and backwards in turn, with a warm_up; "
                     "for other orders write `flush yes`");
    }
    for (int rank = 0; rank < config_.num_ranks; ++rank) {
      set_rank(rank);
      const PlacedList forwards = actions_of(chosen_.forwards->steps, rank);
      const PlacedList backwards = actions_of(chosen_.backwards->steps, rank);
      if (forwards.empty() || forwards.size() != backwards.size()) {
        throw refuse(chosen_.forwards->spot,
                     fmt::format("expected as many forwards as backwards on rank {}, at least one, "
                                 "found {} and {} ({})",
                                 rank, forwards.size(), backwards.size(), shape()));
      }
      const auto size = static_cast<int64_t>(forwards.size());
      const auto at = [&](const PlacedList& list, int64_t number) {
        Action action = list[static_cast<std::size_t>(number % size)].action;
        action.first += number / size * config_.num_microbatches;
        action.last = action.first;
        return action;
      };
      const auto index = static_cast<std::size_t>(rank);
      const int64_t ahead = warm_up_of(kMostTurns);
      for (int64_t i = 0; i < ahead; ++i) {
        turn(chosen_.warm_up->spot);
        schedule.prologue[index].push_back(at(forwards, i));
        schedule.epilogue[index].push_back(at(backwards, size + i));
      }
      for (int64_t i = 0; i < size; ++i) {
        schedule.period[index].push_back(at(forwards, ahead + i));
        schedule.period[index].push_back(at(backwards, i));
      }
    }
    try {
      validate(schedule);
    } catch (const Error& error) {
      throw refuse(chosen_.forwards->spot, error.message());
    }
  }

  const Program& program_;
  ScheduleConfig config_;
  Values values_;
  Chosen chosen_;
  int64_t turns_ = 0;
  std::vector<internal::Route> routes_;
  std::vector<std::map<int, std::vector<int64_t>>> own_;  // [rank][stage]: microbatches
};

std::string number_of(int count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

int default_chunks(const Program& program) {
  return program.placement.kind == Placement::Kind::kV ? 2 : std::max(program.chunks, 1);
}

std::optional<std::string> refused(const Program& program, const ScheduleConfig& config) {
  if (program.ranks != 0 && config.num_ranks != program.ranks) {
    return fmt::format("its order is written for {}, found {}; set ranks = {}",
                       number_of(program.ranks, "rank", "ranks"), config.num_ranks, program.ranks);
  }
  if (program.microbatches != 0 && config.num_microbatches != program.microbatches) {
    return fmt::format("its order is written for {}, found {}; set microbatches = {}",
                       number_of(program.microbatches, "microbatch", "microbatches"),
                       config.num_microbatches, program.microbatches);
  }
  const int chunks = default_chunks(program);
  const bool free_chunks = program.placement.kind == Placement::Kind::kLooped ||
                           (program.placement.kind == Placement::Kind::kExplicit &&
                            program.chunks != 0 && program.ranks == 0);
  if (!free_chunks) {
    if (auto reason = internal::refused_chunks(config, chunks)) {
      return reason;
    }
  }
  if (program.placement.both_ways && config.num_ranks % 2 != 0) {
    return fmt::format("two directions need an even number of ranks, found {}", config.num_ranks);
  }
  const Builder builder(program, config);
  if (const Requirement* requirement = builder.broken_requirement()) {
    return fmt::format("{} (found {} on {})", requirement->reason,
                       number_of(config.num_microbatches, "microbatch", "microbatches"),
                       number_of(config.num_ranks, "rank", "ranks"));
  }
  return std::nullopt;
}

Schedule build(const Program& program, const ScheduleConfig& config) {
  return Builder(program, config).build();
}

std::vector<std::vector<int>> placement_of(const Program& program, const ScheduleConfig& config) {
  return Builder(program, config).routes();
}

}  // namespace millrace::language
