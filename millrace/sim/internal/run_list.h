// What every rank of a simulated run does, action by action, and what comes of it. Made of a
// lowered schedule before the engine runs, or, where parts go to whoever asks, step by step. Plain
// values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/sim/simulate.h"

namespace millrace::internal {

// An action of the run, with its place in the lowered list (which a flush schedule repeats).
struct RunAction {
  Action action;
  std::size_t index = 0;
  int64_t step = 0;  // of the run
};

struct RankRun {
  std::vector<RunAction> actions;
  RankTrace trace;              // one event an action
  std::vector<double> taken_s;  // of a send: when the peer's RECV ended; else 0
  double ended_s = 0;           // after the last action and what the rule does behind it
};

// Repeats (flush) or cuts (no flush: actions of later minibatches left out) each rank's list to the
// steps asked for.
std::vector<RankRun> unroll_lowered(const LoweredSchedule& lowered, int64_t num_steps);

// The same without any repeat, for append_step().
std::vector<RankRun> start_runs(const LoweredSchedule& lowered);

// One more repeat of the rank's list (flush), for a part of the run's step `step`: microbatches and
// versions are numbered by the rank's own repeats.
void append_step(RankRun& run, const LoweredSchedule& lowered, int64_t step);

// Throws Error(kInvalidArgument) as simulate() does.
void check_input(const SimulationInput& input);

// What the engine and the step's time need to know of the rule. Throws as find_rule().
RuleTraits traits_of_rule(const SimulationInput& input);

// Whether the rule does the same in every step and leaves nothing for the next one, so that one
// step stands for all; true, too, where no stage has replicas.
bool steps_are_alike(const LoweredSchedule& lowered, const RuleTraits& traits);

// For each place in the list of one rank: where a B or W of `stage` is the last of an update on the
// rank, the place of the update's REDUCE; else -1.
std::vector<int64_t> updates_ended_by(const ActionList& list, int stage);

// Microbatches whose gradients of `stage` the list computes, ascending.
std::vector<int64_t> microbatches_of(const ActionList& list, int stage);

}  // namespace millrace::internal
