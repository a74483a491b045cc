#include "millrace/runtime/board.h"

#include <chrono>

namespace millrace {

void StepBoard::report(int64_t step, const LossSums& sums) {
  bool complete = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pending& pending = pending_[step];
    pending.sums.loss += sums.loss;
    pending.sums.correct += sums.correct;
    pending.sums.samples += sums.samples;
    complete = ++pending.reports == reporters_;
  }
  if (complete) {
    changed_.notify_one();
  }
}

std::optional<StepSums> StepBoard::next(double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [&] {
    const auto it = pending_.find(next_step_);
    return it != pending_.end() && it->second.reports == reporters_;
  };
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                    [&] { return ready() || closed_; });
  if (!ready()) {
    return std::nullopt;
  }
  const auto it = pending_.find(next_step_);
  const StepSums result{next_step_, it->second.sums};
  pending_.erase(it);
  ++next_step_;
  return result;
}

void StepBoard::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool StepBoard::closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

}  // namespace millrace
