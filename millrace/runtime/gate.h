// StepGate: lets all ranks of a run agree on the step after which it stops early, without a
// meeting.
//
// A rank enters a step before its first action of it. A stop takes effect at the first step that no
// rank has entered and before which all rounds of replicated stages are complete, so all ranks
// complete the same steps: a pipeline without a flush drains. Where ranks live in several
// processes, each process has a gate: all are frozen, the furthest step of all is found, and that
// decides for each.
// Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

namespace millrace {

class StepGate {
 public:
  // `round_steps`: LoweredSchedule::round_steps. `broken`: asked by ranks that wait;
  // true lets them go on, into the error that ended the run.
  explicit StepGate(int64_t round_steps = 1, std::function<bool()> broken = {})
      : round_steps_(round_steps), broken_(std::move(broken)) {}

  // False once the run is to end before this step. Waits while the gate is frozen, unless some rank
  // has entered the step already.
  bool enter(int64_t step) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (frozen_ && step > furthest_ && !broken()) {
      changed_.wait_for(lock, kPoll);
    }
    if (step >= limit_) {
      return false;
    }
    furthest_ = std::max(furthest_, step);
    return true;
  }

  int64_t furthest() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return furthest_;
  }

  // Whether the run has ended by an error, so that no rank need wait for anything.
  bool broken() const { return broken_ && broken_(); }

  // Lets nobody into a new step until stop_after(). Returns the furthest step that a rank has
  // entered; -1 for none.
  int64_t freeze() {
    const std::lock_guard<std::mutex> lock(mutex_);
    frozen_ = true;
    return furthest_;
  }

  // `furthest`: the greatest of what all gates answered to freeze().
  void stop_after(int64_t furthest) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t rounds = (furthest + round_steps_) / round_steps_;
    limit_ = std::min(limit_, rounds * round_steps_);
    frozen_ = false;
    changed_.notify_all();
  }

  // Where this is the only gate.
  void request_stop() { stop_after(freeze()); }

 private:
  static constexpr std::chrono::milliseconds kPoll{50};

  const int64_t round_steps_;
  const std::function<bool()> broken_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool frozen_ = false;
  int64_t furthest_ = -1;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
};

}  // namespace millrace
