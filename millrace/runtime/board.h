// StepBoard: where the ranks that know the loss report it, and where the process reads it. Sums and
// counts are reduced, never means. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/model/loss.h"

namespace millrace {

struct StepSums {
  int64_t step = 0;
  LossSums sums;
  std::optional<double> gradient_norm;  // where the gradient is clipped
};

// Where ranks report to: the board itself, or the way to one in another process. Thread-safe.
class StepReporter {
 public:
  virtual ~StepReporter() = default;
  // Sums of one microbatch or more of a step, by a replica of the last stage.
  virtual void report(int64_t step, int reporter, const LossSums& sums) = 0;
  virtual void report_norm(int64_t step, double gradient_norm) = 0;  // by one rank, once a step
};

class StepBoard final : public StepReporter {
 public:
  // `step_samples(step)`: samples after which a step is complete; called under the board's lock.
  // `num_reporters`: replicas of the last stage. With `norms` a step is complete when its norm was
  // reported too.
  StepBoard(std::function<int64_t(int64_t)> step_samples, int num_reporters, bool norms = false)
      : step_samples_(std::move(step_samples)), num_reporters_(num_reporters), norms_(norms) {}

  // Added up by reporter first, then in the order of reporters, so that a step's loss does not
  // depend on timing.
  void report(int64_t step, int reporter, const LossSums& sums) override;
  void report_norm(int64_t step, double gradient_norm) override;

  // The next complete step in order, waiting at most `timeout_s`; nothing on timeout or after
  // close() when none is left.
  std::optional<StepSums> next(double timeout_s);

  // Blocks until the first `num_steps` steps are complete, at most `timeout_s`; whether they are.
  bool wait_complete(int64_t num_steps, double timeout_s);

  void close();  // no more reports will come
  bool closed() const;

 private:
  struct Pending {
    std::vector<LossSums> by_reporter;
    int64_t samples = 0;
    std::optional<double> gradient_norm;
  };
  bool complete(int64_t step, const Pending& pending) const {
    return pending.samples == step_samples_(step) && (!norms_ || pending.gradient_norm);
  }

  const std::function<int64_t(int64_t)> step_samples_;
  const int num_reporters_;
  const bool norms_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Pending> pending_;
  int64_t next_step_ = 0;
  int64_t num_complete_ = 0;  // each once, when what was missing is reported
  bool closed_ = false;
};

}  // namespace millrace
