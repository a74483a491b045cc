// StepGate: lets every rank of a process agree on the step after which a run stops early, without a
// meeting.
//
// A rank enters a step before its first action of it. A stop takes effect at the first step that no
// rank has entered and before which all rounds of replicated stages are complete, so all ranks
// complete the same steps: a pipeline without a flush drains.
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>

namespace millrace {

class StepGate {
 public:
  // `round_steps`: LoweredSchedule::round_steps.
  explicit StepGate(int64_t round_steps = 1) : round_steps_(round_steps) {}

  // False once the run is to end before this step.
  bool enter(int64_t step) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (step >= limit_) {
      return false;
    }
    furthest_ = std::max(furthest_, step);
    return true;
  }

  void request_stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t rounds = (furthest_ + round_steps_) / round_steps_;
    limit_ = std::min(limit_, rounds * round_steps_);
  }

 private:
  const int64_t round_steps_;
  std::mutex mutex_;
  int64_t furthest_ = -1;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
};

}  // namespace millrace
