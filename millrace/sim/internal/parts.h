// Parts: the replicas' parts of all steps of a simulated run, dealt one by one, in the order of
// steps, to whoever asks first ([parallel] deal = "on-demand"; the runtime's is
// millrace/runtime/dealer.h). The ranks that make up one copy of the model, replica k of every
// stage, work on the same part in the same step of their own.
//
// Used by the engine alone; single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/core/schedule.h"

namespace millrace::internal {

class Parts {
 public:
  // Throws Error(kUnsupported) unless the schedule has a flush and its replicas make whole copies,
  // each of as many microbatches of its own, the same ones on all stages.
  Parts(const LoweredSchedule& lowered, int64_t num_steps);

  int copy_of(int rank) const { return copy_of_rank_[static_cast<std::size_t>(rank)]; }
  // The step that the part belongs to which the rank's copy works on in its own step `turn`; turns
  // are asked for from 0 upwards. Nothing when all parts are dealt.
  std::optional<int64_t> step_of(int rank, int64_t turn);

 private:
  const int64_t num_parts_;
  std::vector<int> copy_of_rank_;          // -1: idle
  std::vector<std::vector<int64_t>> own_;  // parts of each copy, by turn
  int64_t next_ = 0;
};

}  // namespace millrace::internal
