#include "millrace/sim/internal/run_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/core/grid.h"

namespace millrace::internal {
namespace {

bool completes_gradient(const Action& action, int stage) {
  return action.stage == stage &&
         (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient);
}

}  // namespace

std::vector<RankRun> start_runs(const LoweredSchedule& lowered) {
  std::vector<RankRun> runs(lowered.ranks.size());
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    runs[rank].trace.rank = static_cast<int>(rank);
    runs[rank].trace.stages = lowered.rank_stages.at(rank);
  }
  return runs;
}

void append_step(RankRun& run, const LoweredSchedule& lowered, int64_t step) {
  const ActionList& list = lowered.ranks[static_cast<std::size_t>(run.trace.rank)];
  const auto repeat = static_cast<int64_t>(run.actions.size() / list.size());
  const int64_t offset = repeat * lowered.microbatches_per_step;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Action action = list[i];
    action.first += action.first != kNone ? offset : 0;
    action.last += action.last != kNone ? offset : 0;
    action.version += action.version != kNone ? repeat : 0;
    run.actions.push_back({action, i, step});
  }
  run.taken_s.resize(run.actions.size());
}

std::vector<RankRun> unroll_lowered(const LoweredSchedule& lowered, int64_t num_steps) {
  std::vector<RankRun> runs = start_runs(lowered);
  for (RankRun& run : runs) {
    const ActionList& list = lowered.ranks[static_cast<std::size_t>(run.trace.rank)];
    const std::size_t size = list.size() * static_cast<std::size_t>(lowered.flush ? num_steps : 1);
    run.actions.reserve(size);
    run.taken_s.reserve(size);
    for (int64_t step = 0; lowered.flush && !list.empty() && step < num_steps; ++step) {
      append_step(run, lowered, step);
    }
    int64_t step = 0;
    for (std::size_t i = 0; !lowered.flush && i < list.size(); ++i) {
      if (list[i].first != kNone) {
        step = list[i].first / lowered.microbatches_per_step;
      }  // an action without microbatches belongs to the step of the one before it
      if (step < num_steps) {
        run.actions.push_back({list[i], i, step});
      }
    }
    run.taken_s.resize(run.actions.size());
    run.trace.events.reserve(run.actions.size());
  }
  return runs;
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
  if (!input.node_of_rank.empty() && std::ssize(input.node_of_rank) < num_ranks) {
    throw refuse(fmt::format("expected the nodes of {} ranks, found {}", num_ranks,
                             input.node_of_rank.size()));
  }
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

RuleTraits traits_of_rule(const SimulationInput& input) {
  return input.own_rule ? input.own_rule->traits : find_rule(input.rule).traits;
}

bool steps_are_alike(const LoweredSchedule& lowered, const RuleTraits& traits) {
  const bool plain = traits.equal_replicas && traits.sums_gradients && !traits.serves;
  return plain || std::all_of(lowered.stage_ranks.begin(), lowered.stage_ranks.end(),
                              [](const std::vector<int>& ranks) { return ranks.size() <= 1; });
}

std::vector<int64_t> updates_ended_by(const ActionList& list, int stage) {
  std::vector<int64_t> updates(list.size(), -1);
  int64_t last = -1;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (completes_gradient(list[i], stage)) {
      last = static_cast<int64_t>(i);
    } else if (list[i].stage == stage && list[i].kind == ActionKind::kReduce && last >= 0) {
      updates[static_cast<std::size_t>(last)] = static_cast<int64_t>(i);
      last = -1;
    }
  }
  return updates;
}

std::vector<int64_t> microbatches_of(const ActionList& list, int stage) {
  std::vector<int64_t> microbatches;
  for (const Action& action : list) {
    for (int64_t m = action.first; completes_gradient(action, stage) && m <= action.last; ++m) {
      microbatches.push_back(m);
    }
  }
  std::sort(microbatches.begin(), microbatches.end());
  return microbatches;
}

}  // namespace millrace::internal
