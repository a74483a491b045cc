#include "millrace/sim/internal/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/grid.h"

namespace millrace::internal {
namespace {

// Rules speak of elements; StageCost knows bytes. Ranges are turned back into bytes in proportion,
// so the element's size cancels out.
constexpr int64_t kElementBytes = 4;

int64_t num_elements(const StageCost& cost) {
  return (cost.parameter_bytes + kElementBytes - 1) / kElementBytes;
}

double bytes_of(const Range& range, const StageCost& cost) {
  const int64_t all = num_elements(cost);
  return all == 0 ? 0.0
                  : static_cast<double>(cost.parameter_bytes) *
                        (static_cast<double>(range.size()) / static_cast<double>(all));
}

double duration_s(const StageCost& cost, const Action& action) {
  const auto parts = static_cast<double>(action.num_microbatches());
  switch (action.kind) {
    case ActionKind::kForward:
      return parts * cost.forward_s;
    case ActionKind::kBackward:
      return parts * (cost.recompute_s + cost.input_gradient_s + cost.weight_gradient_s);
    case ActionKind::kInputGradient:
      return parts * (cost.recompute_s + cost.input_gradient_s);
    case ActionKind::kWeightGradient:
      return parts * cost.weight_gradient_s;
    default:
      return cost.update_s;
  }
}

void check_input(const SimulationInput& input) {
  const LoweredSchedule& lowered = input.lowered;
  const auto refuse = [&lowered](const std::string& text) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("schedule {}: {}", lowered.name, text));
  };
  if (static_cast<int>(input.costs.size()) != lowered.num_stages) {
    throw refuse(fmt::format("expected costs of {} stages, found {}", lowered.num_stages,
                             input.costs.size()));
  }
  if (!input.link_bytes.empty() && input.link_bytes.size() != lowered.links.size()) {
    throw refuse(fmt::format("expected the bytes of {} links, found {}", lowered.links.size(),
                             input.link_bytes.size()));
  }
  if (input.num_steps < 1) {
    throw refuse(fmt::format("expected at least 1 step, found {}", input.num_steps));
  }
  if (!lowered.flush && input.num_steps > lowered.num_steps) {
    throw refuse(fmt::format("{} steps are to be simulated of a segment lowered for {}; lower more",
                             input.num_steps, lowered.num_steps));
  }
  if (lowered.microbatches_per_step < 1) {
    throw refuse(fmt::format("expected at least 1 microbatch a step, found {}",
                             lowered.microbatches_per_step));
  }
  const int num_ranks = static_cast<int>(lowered.ranks.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    const ActionList& list = lowered.ranks[rank];
    if (!list.empty() && rank >= input.cluster.num_devices()) {
      throw refuse(
          fmt::format("rank {} needs a device, but the cluster has {}; use a larger cluster", rank,
                      input.cluster.num_devices()));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action& action = list[i];
      const bool message = is_send(action.kind) || is_receive(action.kind);
      const bool numbered = action.first != kNone || !(is_compute(action.kind) || message);
      const bool peer_known =
          !message || (action.peer >= 0 && action.peer < num_ranks && action.peer_stage >= 0 &&
                       action.peer_stage < lowered.num_stages &&
                       lowered.replica_of(action.peer, action.peer_stage) >= 0);
      if (action.stage < 0 || action.stage >= lowered.num_stages || !numbered || !peer_known) {
        throw refuse(fmt::format("action {} of rank {} is not one of {} stages on {} ranks\n{}",
                                 to_string(action), rank, lowered.num_stages, num_ranks,
                                 order_grid(lowered.ranks, {{rank, i}})));
      }
    }
  }
}

}  // namespace

std::vector<RankRun> unroll_lowered(const LoweredSchedule& lowered, int64_t num_steps) {
  std::vector<RankRun> runs(lowered.ranks.size());
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    const ActionList& list = lowered.ranks[rank];
    runs[rank].trace.rank = static_cast<int>(rank);
    runs[rank].trace.stages = lowered.rank_stages.at(rank);
    const int64_t repeats = lowered.flush ? num_steps : 1;
    runs[rank].actions.reserve(list.size() * static_cast<std::size_t>(repeats));
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
      int64_t step = repeat;
      for (std::size_t i = 0; i < list.size(); ++i) {
        Action action = list[i];
        if (lowered.flush) {
          const int64_t offset = repeat * lowered.microbatches_per_step;
          action.first += action.first != kNone ? offset : 0;
          action.last += action.last != kNone ? offset : 0;
          action.version += action.version != kNone ? repeat : 0;
        } else if (action.first != kNone) {
          step = action.first / lowered.microbatches_per_step;
        }  // an action without microbatches belongs to the step of the one before it
        if (step < num_steps) {
          runs[rank].actions.push_back({action, i, step});
        }
      }
    }
    runs[rank].taken_s.resize(runs[rank].actions.size());
    runs[rank].trace.events.reserve(runs[rank].actions.size());
  }
  return runs;
}

Engine::Engine(const SimulationInput& input) : input_(input) {
  check_input(input);
  const LoweredSchedule& lowered = input.lowered;
  runs_ = unroll_lowered(lowered, input.num_steps);
  states_.resize(runs_.size());
  collectives_.resize(lowered.num_stages);
  link_free_s_.resize(runs_.size());
  const RuleEntry& rule = find_rule(input.rule);
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    if (!runs_[rank].actions.empty()) {
      used_ranks_.push_back(static_cast<int>(rank));
    }
    for (const int stage : lowered.rank_stages[rank]) {
      states_[rank].exchanges[stage].rule =
          rule.make({static_cast<int>(lowered.stage_ranks.at(stage).size()),
                     lowered.replica_of(static_cast<int>(rank), stage)});
    }
  }
}

std::size_t Engine::KeyHash::operator()(const Key& key) const {
  constexpr std::size_t kOdd = 0x9E3779B97F4A7C15U;
  std::size_t hash = 0;
  std::apply(
      [&hash](const auto&... part) {
        ((hash = (hash ^ static_cast<std::size_t>(part)) * kOdd, hash ^= hash >> 29U), ...);
      },
      key);
  return hash;
}

std::vector<RankRun> Engine::run() {
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    wake(static_cast<int>(rank));
  }
  while (!ready_.empty()) {
    const int rank = ready_.front();
    ready_.pop_front();
    while (states_[rank].next < runs_[rank].actions.size() && advance(rank)) {
    }
  }
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    if (states_[rank].next < runs_[rank].actions.size()) {
      report_deadlock();
    }
  }
  expect_all_received();
  return std::move(runs_);
}

bool Engine::advance(int rank) {
  const ActionKind kind = next_action(rank).action.kind;
  if (is_compute(kind)) {
    compute(rank);
    return true;
  }
  if (is_send(kind)) {
    send(rank);
    return true;
  }
  if (is_receive(kind)) {
    return receive(rank);
  }
  if (kind == ActionKind::kReduce) {
    return reduce(rank);
  }
  if (kind == ActionKind::kNorm) {
    return norm(rank);
  }
  step(rank);
  return true;
}

void Engine::compute(int rank) {
  const Action& action = next_action(rank).action;
  const double start_s = states_[rank].clock_s;
  const double work_s =
      duration_s(input_.costs[action.stage], action) / input_.cluster.speed_of(rank);
  finish(rank, start_s, start_s + work_s + input_.cluster.action_overhead_s, 0, 0);
}

void Engine::send(int rank) {
  const Action& action = next_action(rank).action;
  const double start_s = states_[rank].clock_s;
  const double end_s = start_s + input_.cluster.action_overhead_s;
  Message message;
  message.bytes = message_bytes(action);
  message.sent_by = states_[rank].next;
  message.arrival_s = end_s;
  if (action.peer != rank) {
    double& free_s = link_free_s_[rank][action.peer];
    const double on_wire_s =
        static_cast<double>(message.bytes) / input_.cluster.bandwidth_between(rank, action.peer);
    free_s = std::max(free_s, end_s) + on_wire_s;
    message.arrival_s = free_s + input_.cluster.latency_between(rank, action.peer);
  }
  const Key key{rank, action.peer, action.stage, action.peer_stage, action.first, action.last};
  if (!messages_.emplace(key, message).second) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: the message is sent again before it was received\n{}",
                            input_.lowered.name,
                            order_grid(input_.lowered.ranks, {{rank, next_action(rank).index}})))
        .at_rank(rank)
        .at_action(to_string(action));
  }
  const int peer = action.peer;
  finish(rank, start_s, end_s, 0, message.bytes);
  wake(peer);
}

// Both ends of a message see one link, whichever way it goes.
int64_t Engine::message_bytes(const Action& action) const {
  const LoweredSchedule& lowered = input_.lowered;
  const StageLink link{std::min(action.stage, action.peer_stage),
                       std::max(action.stage, action.peer_stage)};
  int64_t bytes = input_.costs[link.from].output_bytes;
  if (!input_.link_bytes.empty()) {
    const auto found = std::lower_bound(lowered.links.begin(), lowered.links.end(), link);
    bytes = found != lowered.links.end() && *found == link
                ? input_.link_bytes[found - lowered.links.begin()]
                : 0;
  }
  return bytes * action.num_microbatches();
}

bool Engine::receive(int rank) {
  const Action& action = next_action(rank).action;
  const Key key{action.peer, rank, action.peer_stage, action.stage, action.first, action.last};
  const auto found = messages_.find(key);
  if (found == messages_.end()) {
    return false;
  }
  const Message message = found->second;
  messages_.erase(found);
  const double start_s = states_[rank].clock_s;
  const double here_s = std::max(start_s, message.arrival_s);
  const double end_s = here_s + input_.cluster.action_overhead_s;
  runs_[action.peer].taken_s[message.sent_by] = end_s;
  finish(rank, start_s, end_s, here_s - start_s, message.bytes);
  return true;
}

// Walks the rule's machine as far as it goes without waiting for another replica.
bool Engine::reduce(int rank) {
  const int stage = next_action(rank).action.stage;
  const StageCost& cost = input_.costs[stage];
  RankState& state = states_[rank];
  StageExchange& exchange = state.exchanges[stage];
  const auto take = [&exchange](const RuleActions& actions) {
    exchange.reduction->todo.insert(exchange.reduction->todo.end(), actions.begin(), actions.end());
  };
  if (!exchange.reduction) {
    exchange.reduction = Reduction{};
    exchange.reduction->start_s = state.clock_s;
    take(exchange.rule->on(GradientsReady{{0, num_elements(cost)}, true}));
  }
  const std::vector<int>& group = input_.lowered.stage_ranks[stage];
  while (exchange.reduction->waiting || !exchange.reduction->todo.empty()) {
    Reduction& now = *exchange.reduction;
    if (now.waiting) {
      const Collective& collective = collectives_[stage][exchange.num_asked - 1];
      if (collective.num_asked < static_cast<int>(group.size())) {
        return false;
      }
      const double bytes = bytes_of(now.waiting->range, cost);
      now.wait_s += collective.start_s - now.asked_s;
      now.bytes += static_cast<int64_t>(bytes);
      state.clock_s = collective.start_s + all_reduce_s(group, bytes);
      const AllReduced done{now.waiting->range, now.waiting->last};
      now.waiting.reset();
      take(exchange.rule->on(done));
      continue;
    }
    const RuleAction action = now.todo.front();
    now.todo.pop_front();
    if (const auto* sum = std::get_if<AllReduceSum>(&action)) {
      ask(rank, *sum);
    } else if (std::holds_alternative<ApplyUpdate>(action)) {
      exchange.update_due = true;
    } else {
      exchange.released = true;
    }
  }
  exchange.exchanged = true;
  const Reduction done = *std::exchange(exchange.reduction, std::nullopt);
  finish(rank, done.start_s, state.clock_s + input_.cluster.action_overhead_s, done.wait_s,
         done.bytes);
  return true;
}

void Engine::ask(int rank, const AllReduceSum& sum) {
  RankState& state = states_[rank];
  const int stage = next_action(rank).action.stage;
  StageExchange& exchange = state.exchanges[stage];
  std::vector<Collective>& collectives = collectives_[stage];
  if (exchange.num_asked == collectives.size()) {
    collectives.push_back({sum.range, 0, 0});
  }
  Collective& collective = collectives[exchange.num_asked++];
  MILLRACE_CHECK(
      collective.range == sum.range,
      fmt::format("replicas of stage {} reduce different ranges: [{}, {}) and [{}, {})", stage,
                  collective.range.begin, collective.range.end, sum.range.begin, sum.range.end));
  ++collective.num_asked;
  collective.start_s = std::max(collective.start_s, state.clock_s);
  exchange.reduction->waiting = sum;
  exchange.reduction->asked_s = state.clock_s;
  const std::vector<int>& group = input_.lowered.stage_ranks[stage];
  if (collective.num_asked == static_cast<int>(group.size())) {
    for (int member : group) {
      if (member != rank) {
        wake(member);
      }
    }
  }
}

// All used ranks meet and sum one number of 8 bytes.
bool Engine::norm(int rank) {
  constexpr int64_t kNormBytes = 8;
  RankState& state = states_[rank];
  if (state.num_norms == norms_.size()) {
    norms_.push_back({});
  }
  Collective& meeting = norms_[state.num_norms];
  const int num_ranks = static_cast<int>(used_ranks_.size());
  if (!state.norm_start_s) {
    state.norm_start_s = state.clock_s;
    ++meeting.num_asked;
    meeting.start_s = std::max(meeting.start_s, state.clock_s);
    for (const int other : used_ranks_) {
      if (meeting.num_asked == num_ranks && other != rank) {
        wake(other);
      }
    }
  }
  if (meeting.num_asked < num_ranks) {
    return false;
  }
  const double start_s = *std::exchange(state.norm_start_s, std::nullopt);
  ++state.num_norms;
  const double end_s = meeting.start_s + all_reduce_s(used_ranks_, static_cast<double>(kNormBytes));
  finish(rank, start_s, end_s + input_.cluster.action_overhead_s, meeting.start_s - start_s,
         num_ranks > 1 ? kNormBytes : 0);
  return true;
}

double Engine::all_reduce_s(const std::vector<int>& ranks, double bytes) const {
  return input_.all_reduce_s ? input_.all_reduce_s(ranks, bytes)
                             : input_.cluster.all_reduce_s(ranks, bytes);
}

void Engine::step(int rank) {
  RankState& state = states_[rank];
  const Action& action = next_action(rank).action;
  StageExchange& exchange = state.exchanges[action.stage];
  if (exchange.exchanged && !(exchange.update_due && exchange.released)) {
    throw Error(ErrorCode::kInternal,
                fmt::format("rule {} did not release the worker for its update", input_.rule))
        .at_rank(rank)
        .at_action(to_string(action));
  }
  exchange.exchanged = exchange.update_due = exchange.released = false;
  const double start_s = state.clock_s;
  const double work_s =
      duration_s(input_.costs[action.stage], action) / input_.cluster.speed_of(rank);
  finish(rank, start_s, start_s + work_s + input_.cluster.action_overhead_s, 0, 0);
}

void Engine::finish(int rank, double start_s, double end_s, double wait_s, int64_t bytes) {
  const Action& action = next_action(rank).action;
  RankTrace& trace = runs_[rank].trace;
  trace.events.push_back({action, start_s, end_s, wait_s, bytes});
  const double active_s = end_s - start_s - wait_s;
  trace.wait_s += wait_s;
  if (is_compute(action.kind)) {
    trace.compute_s += active_s;
  } else if (action.kind == ActionKind::kStep) {
    trace.update_s += active_s;
  } else {
    trace.communicate_s += active_s;
  }
  states_[rank].clock_s = end_s;
  ++states_[rank].next;
}

const RunAction& Engine::next_action(int rank) const {
  return runs_[rank].actions[states_[rank].next];
}

void Engine::wake(int rank) { ready_.push_back(rank); }

void Engine::report_deadlock() const {
  std::vector<std::string> waits;
  std::vector<GridMark> marks;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (states_[r].next == runs_[r].actions.size()) {
      continue;
    }
    const RunAction& blocked = next_action(rank);
    marks.push_back({rank, blocked.index});
    waits.push_back(fmt::format("rank {} waits in {}{}", rank, to_string(blocked.action),
                                blocked.action.kind == ActionKind::kReduce
                                    ? " for the other replicas"
                                : blocked.action.kind == ActionKind::kNorm
                                    ? " for the other ranks"
                                    : fmt::format(" for rank {}", blocked.action.peer)));
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "schedule {} deadlocks: {}; order the actions so that every tensor is sent before "
          "its receiver needs it\n{}",
          input_.lowered.name, join(waits, ", "), order_grid(input_.lowered.ranks, marks)));
}

void Engine::expect_all_received() const {
  if (messages_.empty()) {
    return;
  }
  std::vector<std::string> texts;
  std::vector<GridMark> marks;
  const std::map<Key, Message> in_order(messages_.begin(), messages_.end());
  for (const auto& [key, message] : in_order) {
    const int rank = std::get<0>(key);
    const RunAction& sent = runs_[rank].actions[message.sent_by];
    texts.push_back(fmt::format("{} of rank {}", to_string(sent.action), rank));
    marks.push_back({rank, sent.index});
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "schedule {}: sent and never received: {}; add the receives to the peers' lists\n{}",
          input_.lowered.name, join(texts, ", "), order_grid(input_.lowered.ranks, marks)));
}

}  // namespace millrace::internal
