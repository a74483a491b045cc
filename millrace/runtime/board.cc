#include "millrace/runtime/board.h"

#include <chrono>

namespace millrace {

namespace {

void add(LossSums& to, const LossSums& sums) {
  to.loss += sums.loss;
  to.correct += sums.correct;
  to.samples += sums.samples;
}

}  // namespace

void StepBoard::report(int64_t step, int reporter, const LossSums& sums) {
  bool is_complete = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pending& pending = pending_[step];
    pending.by_reporter.resize(static_cast<std::size_t>(num_reporters_));
    add(pending.by_reporter.at(static_cast<std::size_t>(reporter)), sums);
    pending.samples += sums.samples;
    is_complete = complete(step, pending);
    num_complete_ += is_complete ? 1 : 0;
  }
  if (is_complete) {
    changed_.notify_all();
  }
}

void StepBoard::report_norm(int64_t step, double gradient_norm) {
  bool is_complete = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pending& pending = pending_[step];
    pending.gradient_norm = gradient_norm;
    is_complete = complete(step, pending);
    num_complete_ += is_complete ? 1 : 0;
  }
  if (is_complete) {
    changed_.notify_all();
  }
}

std::optional<StepSums> StepBoard::next(double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [&] {
    const auto it = pending_.find(next_step_);
    return it != pending_.end() && complete(next_step_, it->second);
  };
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                    [&] { return ready() || closed_; });
  if (!ready()) {
    return std::nullopt;
  }
  const auto it = pending_.find(next_step_);
  StepSums result{next_step_, {}, it->second.gradient_norm};
  for (const LossSums& sums : it->second.by_reporter) {
    add(result.sums, sums);
  }
  pending_.erase(it);
  ++next_step_;
  return result;
}

bool StepBoard::wait_complete(int64_t num_steps, double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                           [&] { return num_complete_ >= num_steps; });
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
