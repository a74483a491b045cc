// Dealer: hands the replicas' parts of a segment's steps to whoever asks first, step by step, so
// that a fast replica works on more of them than a slow one ([parallel] deal = "on-demand").
// Every part is dealt once, in the order of steps; which replica gets it depends on timing.
//
// Ranks that work together on a replica's microbatches (one a stage) ask with the same turn and get
// the same answer. Thread-safe; shared by all ranks of a process.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "millrace/core/schedule.h"

namespace millrace {

class Dealer {
 public:
  // What a replica works on in one step of its own: the part that replica `slot` would have in
  // step `step`.
  struct Part {
    int64_t step = 0;
    int slot = 0;
  };

  Dealer(int64_t num_steps, int num_replicas)
      : num_parts_(num_steps * num_replicas), parts_(static_cast<std::size_t>(num_replicas)) {}

  // The part of the replica's own step `turn`; turns are asked for from 0 upwards. Nothing when
  // all are dealt.
  std::optional<Part> part(int replica, int64_t turn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t>& own = parts_.at(static_cast<std::size_t>(replica));
    if (turn == static_cast<int64_t>(own.size()) && next_ < num_parts_) {
      own.push_back(next_++);
    }
    if (turn >= static_cast<int64_t>(own.size())) {
      return std::nullopt;
    }
    const int64_t number = own[static_cast<std::size_t>(turn)];
    const auto replicas = static_cast<int64_t>(parts_.size());
    return Part{number / replicas, static_cast<int>(number % replicas)};
  }

 private:
  const int64_t num_parts_;
  std::mutex mutex_;
  int64_t next_ = 0;
  std::vector<std::vector<int64_t>> parts_;  // of each replica, by turn
};

// The microbatches of a step whose forward each replica of a stage runs, ascending, as the lists of
// a schedule with a flush number them.
std::vector<std::vector<int64_t>> microbatches_by_replica(const LoweredSchedule& lowered,
                                                          int stage);

}  // namespace millrace
