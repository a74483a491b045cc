#include "millrace/sim/internal/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/core/grid.h"
#include "millrace/schedule/shard.h"

namespace millrace::internal {
namespace {

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

}  // namespace

Engine::Engine(const SimulationInput& input) : input_(input), links_(input.cluster) {
  check_input(input);
  const LoweredSchedule& lowered = input.lowered;
  if (input.on_demand) {
    parts_.emplace(lowered, input.num_steps);
    keeps_order_ = true;
  }
  runs_ = parts_ ? start_runs(lowered) : unroll_lowered(lowered, input.num_steps);
  states_.resize(runs_.size());
  stages_.resize(static_cast<std::size_t>(lowered.num_stages));
  shard_meetings_.resize(stages_.size());
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    states_[rank].wants_part = parts_ && !lowered.ranks[rank].empty();
    if (states_[rank].wants_part || !runs_[rank].actions.empty()) {
      used_ranks_.push_back(static_cast<int>(rank));
    }
  }
  keeps_order_ = keeps_order_ || links_.map().shares_links(used_ranks_);
  const RuleTraits traits = traits_of_rule(input);
  if (!input.own_rule) {
    options_ = settle_rule(find_rule(input.rule), input.rule_options);
  }
  for (int stage = 0; stage < lowered.num_stages; ++stage) {
    if (lowered.stage_ranks.at(static_cast<std::size_t>(stage)).size() > 1 &&
        !is_sharded(lowered, stage)) {
      keeps_order_ = keeps_order_ || traits.ordered || traits.serves;
      hold_stages(stage, traits);
    }
  }
}

// Ports and rules of a stage's replicas.
void Engine::hold_stages(int stage, const RuleTraits& traits) {
  const std::vector<int>& ranks = input_.lowered.stage_ranks[static_cast<std::size_t>(stage)];
  const StageCost& cost = input_.costs[static_cast<std::size_t>(stage)];
  std::vector<StagePorts::Member> members;
  for (const int rank : ranks) {
    const int node = input_.node_of_rank.empty() ? 0 : input_.node_of_rank[rank];
    members.push_back({rank, node, cost.update_s / input_.cluster.speed_of(rank)});
  }
  stages_[stage] =
      std::make_unique<StagePorts>(*this, stage, members, cost.parameter_bytes, traits.serves);
  RuleConfig config{
      .num_members = static_cast<int>(ranks.size()), .options = options_, .seed = input_.seed};
  for (const int rank : ranks) {
    const ActionList& list = input_.lowered.ranks[rank];
    Held held;
    held.stage = stage;
    held.port = &stages_[stage]->port(config.member);
    held.rule =
        input_.own_rule ? input_.own_rule->make(config) : find_rule(input_.rule).make(config);
    held.microbatches = microbatches_of(list, stage);
    if (traits.overlaps) {
      held.ends_update = updates_ended_by(list, stage);
    }
    states_[rank].held.push_back(std::move(held));
    ++config.member;
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
  if (keeps_order_) {
    run_ordered();
  } else {
    run_unordered();
  }
  expect_all_done();
  expect_all_received();
  expect_all_taken();
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    runs_[rank].ended_s = states_[rank].clock_s;
  }
  return std::move(runs_);
}

void Engine::run_unordered() {
  for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
    ready_.push_back(static_cast<int>(rank));
  }
  while (!ready_.empty()) {
    const int rank = ready_.front();
    ready_.pop_front();
    while (!is_done(rank) && advance(rank)) {
    }
  }
}

bool Engine::is_done(int rank) const {
  const RankState& state = states_[rank];
  return state.next == runs_[rank].actions.size() && !state.wants_part &&
         state.num_ended == state.held.size();
}

// Whether what it does next is to ask for a part.
bool Engine::asks(int rank) const {
  const RankState& state = states_[rank];
  return state.wants_part && state.next == runs_[rank].actions.size() &&
         state.num_begun == state.held.size();
}

bool Engine::advance(int rank) {
  RankState& state = states_[rank];
  if (state.num_begun < state.held.size()) {
    return begin(rank);
  }
  if (asks(rank)) {
    const std::size_t turn = state.next / input_.lowered.ranks[rank].size();
    const std::optional<int64_t> step = parts_->step_of(rank, static_cast<int64_t>(turn));
    if (step) {
      append_step(runs_[rank], input_.lowered, *step);
    }
    state.wants_part = step.has_value();
    return true;
  }
  if (state.next == runs_[rank].actions.size()) {
    return end(rank);
  }
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
  const bool sharded = is_sharded(input_.lowered, next_action(rank).action.stage);
  if (kind == ActionKind::kGather || (kind == ActionKind::kReduce && sharded)) {
    return meet_shards(rank);
  }
  if (kind == ActionKind::kFree) {
    free(rank);
    return true;
  }
  if (kind == ActionKind::kReduce) {
    return reduce(rank);
  }
  return kind == ActionKind::kNorm ? norm(rank) : step(rank);
}

void Engine::compute(int rank) {
  const RunAction& run = next_action(rank);
  const Action& action = run.action;
  const double start_s = states_[rank].clock_s;
  double work_s = duration_s(input_.costs[action.stage], action) / input_.cluster.speed_of(rank);
  if (input_.slowdown) {
    const std::size_t repeat = states_[rank].next / input_.lowered.ranks[rank].size();
    work_s *= input_.slowdown(rank, input_.lowered.flush ? static_cast<int64_t>(repeat) : run.step);
  }
  Held* held = find_held(rank, action.stage);
  if (held != nullptr && !held->ends_update.empty() && held->ends_update[run.index] >= 0) {
    const auto update = static_cast<std::size_t>(held->ends_update[run.index]);
    held->port->set_update(update_of(rank, *held, update, run.step));
    announce(*held, start_s, work_s, action);
  }
  record(rank, start_s, start_s + work_s + input_.cluster.action_overhead_s, 0, 0);
}

void Engine::send(int rank) {
  const Action& action = next_action(rank).action;
  const double start_s = states_[rank].clock_s;
  const double end_s = start_s + input_.cluster.action_overhead_s;
  Tensor tensor;
  tensor.bytes = message_bytes(action);
  tensor.sent_by = states_[rank].next;
  tensor.arrival_s = links_.carry(rank, action.peer, end_s, static_cast<double>(tensor.bytes));
  const Key key{rank, action.peer, action.stage, action.peer_stage, action.first, action.last};
  if (!tensors_.emplace(key, tensor).second) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: the message is sent again before it was received\n{}",
                            input_.lowered.name,
                            order_grid(input_.lowered.ranks, {{rank, next_action(rank).index}})))
        .at_rank(rank)
        .at_action(to_string(action));
  }
  const int peer = action.peer;
  record(rank, start_s, end_s, 0, tensor.bytes);
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
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) {
    states_[rank].is_blocked = true;
    return false;
  }
  const Tensor tensor = found->second;
  tensors_.erase(found);
  const double start_s = states_[rank].clock_s;
  const double here_s = std::max(start_s, tensor.arrival_s);
  const double end_s = here_s + input_.cluster.action_overhead_s;
  runs_[action.peer].taken_s[tensor.sent_by] = end_s;
  record(rank, start_s, end_s, here_s - start_s, tensor.bytes);
  return true;
}

// All used ranks meet and sum one number of 8 bytes.
bool Engine::norm(int rank) {
  constexpr int64_t kNormBytes = 8;
  RankState& state = states_[rank];
  if (state.num_norms == norms_.size()) {
    norms_.push_back({});
  }
  Norm& meeting = norms_[state.num_norms];
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
    state.is_blocked = true;
    return false;
  }
  const double start_s = *std::exchange(state.norm_start_s, std::nullopt);
  ++state.num_norms;
  const double end_s = meeting.start_s + all_reduce_s(used_ranks_, static_cast<double>(kNormBytes));
  record(rank, start_s, end_s + input_.cluster.action_overhead_s, meeting.start_s - start_s,
         num_ranks > 1 ? kNormBytes : 0);
  return true;
}

double Engine::all_reduce_s(const std::vector<int>& ranks, double bytes) const {
  return input_.all_reduce_s ? input_.all_reduce_s(ranks, bytes)
                             : input_.cluster.all_reduce_s(ranks, bytes);
}

double Engine::reduce(const std::vector<int>& ranks, double at_s, double bytes) {
  return links_.reduce(ranks, at_s, bytes, all_reduce_s(ranks, bytes));
}

void Engine::record(int rank, double start_s, double end_s, double wait_s, int64_t bytes) {
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

// A rank that an action of the schedule may have let go on.
void Engine::wake(int rank) {
  RankState& state = states_[rank];
  if (!keeps_order_) {
    ready_.push_back(rank);
  } else if (state.is_blocked) {
    give_turn(rank, std::max(now_s_, state.clock_s));
  }
  state.is_blocked = false;
}

}  // namespace millrace::internal
