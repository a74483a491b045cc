// RuleOracle: what training by an exchange rule must compute, in one thread. In two halves: the
// gradients of every replica's own samples at the weights that the run had there, by the layers'
// arithmetic; and the rule's law on them (internal/rule_laws.h), by which every weight follows.
//
// Which replica works on which part of a minibatch is taken from the lowered schedule, which other
// oracles prove. Schedules with a flush only. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/schedule.h"
#include "millrace/data/order.h"
#include "millrace/train/internal/rule_laws.h"
#include "millrace/train/prepare.h"
#include "millrace/train/session.h"

namespace millrace {

class RuleOracle {
 public:
  // `job` outlives the oracle. Of steps [first_step, first_step + num_steps) of epoch 0, from the
  // initial weights. Throws kUnsupported for a rule without a law.
  RuleOracle(const Job& job, const Schedule& schedule, const SampleOrder& order, int64_t first_step,
             int64_t num_steps);

  std::string text() const;

  // Takes from the run what it needs; collective like Session::state().
  void record(Session& session, const internal::RecordedRun& recorded);
  // `losses`: the run's, by step.
  void check(const std::vector<LossSums>& losses, internal::Comparison& compare,
             internal::Comparison& compare_bits);

 private:
  void find_parts(const Schedule& schedule);
  LossSums run_step(int64_t step);
  void run_part(int64_t step, int64_t part, const Batch& batch, int64_t place, LossSums& loss);
  void compare_replicas(const internal::StageRun& run, internal::Comparison& compare) const;

  const Job& job_;
  const SampleOrder& order_;
  const internal::RuleLaw* law_;
  RuleTraits traits_;
  std::vector<int64_t> samples_;  // of epoch 0, in order
  int64_t num_parts_;             // of a minibatch
  std::vector<Stage> stages_;
  std::vector<std::vector<std::size_t>> replica_of_;  // by stage and part
  std::vector<std::vector<Tensors>> buffers_;         // by stage and replica
  std::vector<internal::StageRun> runs_;              // by stage
};

}  // namespace millrace
