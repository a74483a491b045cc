// Markov chains over strategies, as FlexFlow searches: over all of them, and over those that a plan
// can say. Used by builtin/flexflow.cc. Pure functions, but for the clock that may end them early.
//
// Source: "Beyond Data and Model Parallelism for Deep Neural Networks" (FlexFlow), SysML 2019,
// section 6: a proposal gives one operator, drawn at random, another configuration; it is accepted
// with probability min(1, exp(beta (old cost - new cost))). Our own: beta is 200 over the start's
// cost; degrees are drawn first, then the devices, so that wide splits, of which there are few on
// runs of devices, are proposed as often as narrow ones; and the chain over stages, whose proposals
// move a cut, change replicas, split a stage or join two.
#pragma once

#include <cstdint>

#include "millrace/planner/internal/soap_stages.h"
#include "millrace/planner/internal/task_graph.h"

namespace millrace::internal {

struct SearchLimits {
  int64_t proposals = 4000;
  // Four that are shifted count as one, about what they take. The last proposal may pass it.
  int64_t simulated_tasks = int64_t{1} << 62;
  double until_s = 1e300;  // of monotonic_s()
  uint64_t seed = 1;
  double beta = 200;            // over the start's cost
  bool free_placement = false;  // parts on any different devices, instead of a run of them
};

struct SearchResult {
  Strategy best;  // that was seen, the start included
  double best_s = 0;
  double start_s = 0;
  int64_t proposals = 0;
  bool clock_ended = false;  // the clock decided, so that another machine may find another answer
};

// Equal arguments give equal answers unless the clock ends the search.
SearchResult search_strategies(const SoapProblem& problem, const Strategy& start,
                               const SearchLimits& limits);

// The same over stages; `best` is strategy_of(stages).
SearchResult search_stages(const SoapProblem& problem, const SoapStages& start,
                           const SearchLimits& limits);

}  // namespace millrace::internal
