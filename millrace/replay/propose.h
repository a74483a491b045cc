// Proposals: what would make a recorded run faster or smaller, each with the step that the replayed
// graph predicts for it and, where a setting does it, that setting. Pure functions.
//
// Source: Hu et al., dPRO, MLSys 2022, arXiv:2205.02473, optimizer: tensor fusion and partition,
// operator fusion, recomputation. In place of its search along the critical path every proposal is
// tried on the whole graph: a run has few thresholds, and a replay takes milliseconds.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/replay/graph.h"

namespace millrace {

struct Proposal {
  std::string kind;      // "gradient fusion", "partition", "operator fusion", "recompute"
  std::string what;      // in words
  std::string settings;  // for --set, separated by blanks; empty: no setting does it
  double step_s = 0;     // predicted
  std::string note;      // what the prediction stands on; may be empty
};

struct ProposalInput {
  const Recording& recording;
  int64_t steps_each = 1;
  const Plan& plan;
  const Profile& profile;
  double samples_per_part = 1;
};

// Gradient fusion first, the fastest setting before others.
std::vector<Proposal> propose(const ProposalInput& input);

// Seconds of a step under gradient-flow with this threshold, by the recording; for tests and
// checks.
struct Promise {
  int64_t threshold_kib = 0;
  int num_messages = 0;
  double step_s = 0;
};
// Of every threshold that changes something, in powers of two, and one that joins all.
std::vector<Promise> promise_thresholds(const ProposalInput& input);

}  // namespace millrace
