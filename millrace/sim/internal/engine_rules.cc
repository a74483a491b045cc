// The engine's half that runs rules: their tasks at the schedule's actions, their messages, and the
// order of time where they need one.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/sim/internal/engine.h"

namespace millrace::internal {

// --- where rules act

// Goes on with the task under way, or with a new one. True when it ended.
template <class MakeTask>
bool Engine::run_task(Held& held, double at_s, const MakeTask& make_task) {
  if (!held.port->has_task()) {
    held.port->begin_task(make_task(), at_s);
  }
  return held.port->go_on();
}

bool Engine::begin(int rank) {
  RankState& state = states_[rank];
  Held& held = state.held[state.num_begun];
  if (!run_task(held, state.clock_s, [&held] { return held.rule->begin(*held.port); })) {
    return false;
  }
  pass_time(rank, held);
  ++state.num_begun;
  return true;
}

bool Engine::end(int rank) {
  RankState& state = states_[rank];
  Held& held = state.held[state.num_ended];
  if (!run_task(held, state.clock_s, [&held] { return held.rule->finish(*held.port); })) {
    return false;
  }
  pass_time(rank, held);
  ++state.num_ended;
  return true;
}

// Of a task outside the schedule's actions: no event, but part of the totals.
void Engine::pass_time(int rank, Held& held) {
  RankTrace& trace = runs_[rank].trace;
  const double wait_s = held.port->take_wait_s();
  held.port->take_bytes();
  trace.wait_s += wait_s;
  trace.communicate_s += held.port->now_s() - states_[rank].clock_s - wait_s;
  states_[rank].clock_s = held.port->now_s();
}

// Tells the rule of the pieces of a gradient as they become final, in the last of the microbatches
// that `action` computes.
void Engine::announce(Held& held, double start_s, double work_s, const Action& action) {
  const std::vector<GradientPiece>& pieces = input_.costs[held.stage].pieces;
  const auto tell = [&held](Range range, double at_s) {
    held.port->run_aside(held.rule->gradients_ready(*held.port, range, false), at_s);
  };
  const double one_s =
      work_s / static_cast<double>(std::max<int64_t>(action.num_microbatches(), 1));
  const double last_s = start_s + (work_s - one_s);
  for (const GradientPiece& piece : pieces) {
    const bool half = action.kind == ActionKind::kWeightGradient;
    tell(piece.range, last_s + one_s * (half ? piece.half_done : piece.done));
  }
  if (pieces.empty()) {
    tell({0, held.port->num_elements()}, start_s + work_s);
  }
  held.announced = true;
}

bool Engine::reduce(int rank) {
  const RunAction& run = next_action(rank);
  const Action& action = run.action;
  RankState& state = states_[rank];
  Held* held = find_held(rank, action.stage);
  if (held == nullptr) {  // nobody to exchange with
    record(rank, state.clock_s, state.clock_s + input_.cluster.action_overhead_s, 0, 0);
    return true;
  }
  SimPort& port = *held->port;
  Range range{0, port.num_elements()};
  if (!port.has_task()) {
    port.set_update(update_of(rank, *held, run.index, run.step));
    if (!held->ends_update.empty()) {
      if (!held->announced) {  // the replica had no microbatch in this update
        announce(*held, state.clock_s, 0, action);
      }
      held->announced = false;
      range = {0, 0};
    }
  }
  if (!run_task(*held, state.clock_s,
                [&] { return held->rule->gradients_ready(port, range, true); })) {
    return false;
  }
  record(rank, state.clock_s, port.now_s() + input_.cluster.action_overhead_s, port.take_wait_s(),
         port.take_bytes());
  return true;
}

bool Engine::step(int rank) {
  const RunAction& run = next_action(rank);
  const double start_s = states_[rank].clock_s;
  const int stage = run.action.stage;
  Held* held = find_held(rank, stage);
  if (held == nullptr) {
    const double work_s = input_.costs[stage].update_s / input_.cluster.speed_of(rank);
    record(rank, start_s, start_s + work_s + input_.cluster.action_overhead_s, 0, 0);
    return true;
  }
  SimPort& port = *held->port;
  if (!port.has_task()) {
    port.set_update(update_of(rank, *held, run.index, run.step));
  }
  if (!run_task(*held, start_s, [&] { return held->rule->step(port); })) {
    return false;
  }
  record(rank, start_s, port.now_s() + input_.cluster.action_overhead_s, port.take_wait_s(),
         port.take_bytes());
  return true;
}

// The update that the REDUCE or STEP at place `index` of the list belongs to. In a list that is
// repeated, `step` says which repeat it is.
Update Engine::update_of(int rank, const Held& held, std::size_t index, int64_t step) const {
  const LoweredSchedule& lowered = input_.lowered;
  const Action& action = lowered.ranks[rank][index];
  const double each = input_.batch / static_cast<double>(lowered.microbatches_per_step);
  constexpr double kLearningRate = 0.1;  // no rule's timing depends on it
  Update update{.step = step, .samples = input_.batch, .own_samples = 0, .lr = kLearningRate};
  auto first = held.microbatches.begin();
  auto last = held.microbatches.end();
  if (action.first != kNone) {
    update.samples = each * static_cast<double>(action.num_microbatches());
    first = std::lower_bound(first, last, action.first);
    last = std::upper_bound(first, last, action.last);
    if (!lowered.flush) {
      update.step = std::min(action.last / lowered.microbatches_per_step, input_.num_steps - 1);
    }
  }
  update.own_samples = each * static_cast<double>(last - first);
  return update;
}

Engine::Held* Engine::find_held(int rank, int stage) {
  for (Held& held : states_[rank].held) {
    if (held.stage == stage) {
      return &held;
    }
  }
  return nullptr;
}

// --- messages and the order of time

bool Engine::Turn::operator<(const Turn& other) const {
  const auto place = [](const Turn& turn) {
    const int last = turn.looking != nullptr ? 2 : turn.asking >= 0 ? 1 : 0;
    return std::tuple(turn.time_s, last, turn.asking, turn.entity);
  };
  return place(other) < place(*this);
}

bool Engine::LeavesLater::operator()(const Letter& a, const Letter& b) const {
  const auto place = [](const Letter& letter) {
    return std::tuple(letter.sent_s, letter.from->stage(), letter.from->member(), letter.number);
  };
  return place(b) < place(a);
}

void Engine::dispatch(const Letter& letter) {
  if (keeps_order_) {
    leaving_.push(letter);
    return;
  }
  Letter carried = letter;
  carried.arrival_s = links_.carry(letter.from->rank(), letter.to->rank(), letter.sent_s,
                                   static_cast<double>(letter.bytes));
  letter.to->deliver(carried);
}

void Engine::wake(SimPort& port, double at_s, bool looks) {
  if (!keeps_order_) {
    ready_.push_back(port.rank());
    return;
  }
  const bool is_server = port.member() == Port::kServer;
  const int entity = is_server ? static_cast<int>(runs_.size()) + port.stage() : port.rank();
  turns_.push({std::max(now_s_, at_s), entity, -1, looks ? &port : nullptr});
}

void Engine::give_turn(int rank, double at_s) {
  turns_.push({at_s, rank, asks(rank) ? parts_->copy_of(rank) : -1, nullptr});
}

// At equal times messages leave first and looks come last, so that who looks sees all that is there
// by then; before them those ask for parts who do so at that time, in the order of replicas.
void Engine::run_ordered() {
  const int num_ranks = static_cast<int>(runs_.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    give_turn(rank, 0);
  }
  for (int stage = 0; stage < input_.lowered.num_stages; ++stage) {
    if (stages_[stage] != nullptr && stages_[stage]->serves()) {
      SimPort& server = stages_[stage]->port(Port::kServer);
      const int first = input_.lowered.stage_ranks[stage].front();
      server.begin_task(find_held(first, stage)->rule->serve(server), 0);
      turns_.push({0, num_ranks + stage, -1, nullptr});
    }
  }
  while (!turns_.empty() || !leaving_.empty()) {
    if (!leaving_.empty() && (turns_.empty() || leaving_.top().sent_s <= turns_.top().time_s)) {
      Letter letter = leaving_.top();
      leaving_.pop();
      now_s_ = letter.sent_s;
      letter.arrival_s = links_.carry(letter.from->rank(), letter.to->rank(), now_s_,
                                      static_cast<double>(letter.bytes));
      letter.to->deliver(letter);
    } else {
      const Turn turn = turns_.top();
      turns_.pop();
      now_s_ = turn.time_s;
      take_turn(turn);
    }
  }
}

void Engine::take_turn(const Turn& turn) {
  // A port may have been given several turns to look, and needed the first only.
  if (turn.looking != nullptr && !turn.looking->look_at(turn.time_s)) {
    return;
  }
  const int num_ranks = static_cast<int>(runs_.size());
  if (turn.entity >= num_ranks) {
    stages_[turn.entity - num_ranks]->port(Port::kServer).go_on();
    return;
  }
  if (!is_done(turn.entity) && advance(turn.entity) && !is_done(turn.entity)) {
    give_turn(turn.entity, states_[turn.entity].clock_s);
  }
}

}  // namespace millrace::internal
