// StepBoard: where the ranks that know the loss report it, and where the process reads it. Sums and
// counts are reduced, never means. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "millrace/model/loss.h"

namespace millrace {

struct StepSums {
  int64_t step = 0;
  LossSums sums;
};

class StepBoard {
 public:
  // `reporters`: ranks that report each step (the replicas of the last stage).
  explicit StepBoard(int reporters) : reporters_(reporters) {}

  void report(int64_t step, const LossSums& sums);

  // The next complete step in order, waiting at most `timeout_s`; nothing on timeout or after
  // close() when none is left.
  std::optional<StepSums> next(double timeout_s);

  void close();  // no more reports will come
  bool closed() const;

 private:
  struct Pending {
    LossSums sums;
    int reports = 0;
  };
  const int reporters_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Pending> pending_;
  int64_t next_step_ = 0;
  bool closed_ = false;
};

}  // namespace millrace
