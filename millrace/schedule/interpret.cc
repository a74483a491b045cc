#include "millrace/schedule/interpret.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"

namespace millrace {
namespace {

void dispatch(const Action& action, ActionHandler& handler) {
  switch (action.kind) {
    case ActionKind::kForward:
      return handler.forward(action);
    case ActionKind::kBackward:
      return handler.backward(action);
    case ActionKind::kInputGradient:
      return handler.input_gradient(action);
    case ActionKind::kWeightGradient:
      return handler.weight_gradient(action);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return handler.send(action);
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward:
      return handler.receive(action);
    case ActionKind::kReduce:
      return handler.reduce(action);
    case ActionKind::kNorm:
      return handler.norm(action);
    case ActionKind::kStep:
      return handler.step(action);
    case ActionKind::kGather:
      return handler.gather(action);
    case ActionKind::kFree:
      return handler.free(action);
  }
  MILLRACE_CHECK(false, "action of unknown kind");
}

void run(const Action& action, int rank, ActionHandler& handler) {
  try {
    dispatch(action, handler);
  } catch (Error& error) {
    // An error that already names an action comes from elsewhere (a peer, say) and keeps its
    // coordinates.
    if (!error.action()) {
      if (!error.rank()) {
        error.at_rank(rank);
      }
      error.at_action(to_string(action));
    }
    throw;
  }
}

int64_t run_repeated(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                     ActionHandler& handler) {
  const ActionList& list = lowered.ranks[static_cast<std::size_t>(rank)];
  for (int64_t step = 0; step < num_steps; ++step) {
    if (!handler.enter_step(step)) {
      return step;
    }
    const int64_t offset = step * lowered.microbatches_per_step;
    for (Action action : list) {
      if (action.first != kNone) {
        action.first += offset;
        action.last += offset;
      }
      if (action.version != kNone) {
        action.version += step;
      }
      run(action, rank, handler);
    }
  }
  return num_steps;
}

// Steps overlap here: forwards of later steps stand between the backwards of earlier ones.
// Microbatches enter in order, of a replica only its own, so the first action of step k comes after
// enter_step(k - 1) was asked.
int64_t run_once(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                 ActionHandler& handler) {
  int64_t entered = 0;
  int64_t limit = num_steps;
  for (const Action& action : lowered.ranks[static_cast<std::size_t>(rank)]) {
    const int64_t step = action.first / lowered.microbatches_per_step;
    while (entered <= step && entered < limit) {
      if (handler.enter_step(entered)) {
        ++entered;
      } else {
        limit = entered;
      }
    }
    if (step < limit) {
      run(action, rank, handler);
    }
  }
  // The last minibatches may have gone to other replicas.
  while (entered < limit) {
    if (handler.enter_step(entered)) {
      ++entered;
    } else {
      limit = entered;
    }
  }
  return entered;
}

}  // namespace

int64_t interpret(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                  ActionHandler& handler) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= lowered.ranks.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: expected a rank in 0..{}, found {}", lowered.name,
                            static_cast<int64_t>(lowered.ranks.size()) - 1, rank));
  }
  if (lowered.microbatches_per_step < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: expected at least one microbatch a step, found {}",
                            lowered.name, lowered.microbatches_per_step));
  }
  if (!lowered.flush && num_steps > lowered.num_steps) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schedule {}: asked for {} steps of a segment that was lowered for {}; "
                            "lower as many steps as are to run",
                            lowered.name, num_steps, lowered.num_steps));
  }
  if (lowered.ranks[static_cast<std::size_t>(rank)].empty()) {
    return 0;  // an idle rank enters no step
  }
  return lowered.flush ? run_repeated(lowered, rank, num_steps, handler)
                       : run_once(lowered, rank, num_steps, handler);
}

}  // namespace millrace
