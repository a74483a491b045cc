// What the engine says when a run cannot end.
#include <fmt/format.h>

#include <map>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/grid.h"
#include "millrace/sim/internal/engine.h"

namespace millrace::internal {

std::string Engine::describe_wait(int rank) const {
  const RankState& state = states_[rank];
  const bool acts = state.num_begun == state.held.size() && state.next < runs_[rank].actions.size();
  const auto waiting = [](const Held& held) { return held.port->has_task(); };
  for (const Held& held : state.held) {
    if (waiting(held)) {
      const std::string where =
          acts ? to_string(next_action(rank).action)
               : fmt::format("{} of stage {}",
                             state.num_begun < state.held.size() ? "begin()" : "finish()",
                             held.stage);
      return fmt::format("rank {} waits in {} {}", rank, where, held.port->describe_wait());
    }
  }
  const Action& action = next_action(rank).action;
  const std::string whom = action.kind == ActionKind::kNorm ? "for the other ranks"
                           : action.peer == kNone           ? "for the stage's other replicas"
                                                  : fmt::format("for rank {}", action.peer);
  return fmt::format("rank {} waits in {} {}", rank, to_string(action), whom);
}

void Engine::expect_all_done() const {
  std::vector<std::string> waits;
  std::vector<GridMark> marks;
  bool by_schedule = false;  // a message of the schedule is missing
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (is_done(rank)) {
      continue;
    }
    waits.push_back(describe_wait(rank));
    if (states_[r].next < runs_[r].actions.size()) {
      const RunAction& blocked = next_action(rank);
      by_schedule = by_schedule || is_receive(blocked.action.kind);
      marks.push_back({rank, blocked.index});
    }
  }
  for (const std::unique_ptr<StagePorts>& stage : stages_) {
    if (stage != nullptr && stage->serves() && stage->port(Port::kServer).has_task()) {
      waits.push_back(fmt::format("the server of stage {} waits {}", stage->stage(),
                                  stage->port(Port::kServer).describe_wait()));
    }
  }
  if (waits.empty()) {
    return;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("schedule {} deadlocks: {}; {}\n{}", input_.lowered.name, join(waits, ", "),
                  by_schedule ? "order the actions so that every tensor is sent before its "
                                "receiver needs it"
                              : "every replica must take part in what its rule's others "
                                "wait for",
                  order_grid(input_.lowered.ranks, marks)));
}

void Engine::expect_all_received() const {
  if (tensors_.empty()) {
    return;
  }
  std::vector<std::string> texts;
  std::vector<GridMark> marks;
  const std::map<Key, Tensor> in_order(tensors_.begin(), tensors_.end());
  for (const auto& [key, tensor] : in_order) {
    const int rank = std::get<0>(key);
    const RunAction& sent = runs_[rank].actions[tensor.sent_by];
    texts.push_back(fmt::format("{} of rank {}", to_string(sent.action), rank));
    marks.push_back({rank, sent.index});
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "schedule {}: sent and never received: {}; add the receives to the peers' lists\n{}",
          input_.lowered.name, join(texts, ", "), order_grid(input_.lowered.ranks, marks)));
}

void Engine::expect_all_taken() const {
  for (const std::unique_ptr<StagePorts>& stage : stages_) {
    const std::vector<std::string> texts =
        stage == nullptr ? std::vector<std::string>{} : stage->untaken();
    MILLRACE_CHECK(texts.empty(), fmt::format("messages of the rule in stage {} that nobody took "
                                              "by the end: {}; what is sent must be "
                                              "received in finish() or serve() at the latest",
                                              stage->stage(), join(texts, ", ")));
  }
}

}  // namespace millrace::internal
