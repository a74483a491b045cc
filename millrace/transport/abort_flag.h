// AbortFlag: the first cause of a failure, told to everybody who waits. Torch-free.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "millrace/base/error.h"

namespace millrace {

// Any thread.
class AbortFlag {
 public:
  // Keeps the first error; only a kPeerLost, which quotes somebody's failure, gives way to a later
  // error of another kind. Returns whether this was the first.
  bool raise(const Error& cause);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Throws kPeerLost that quotes the first cause: "rank 1 failed: ...". Only after raised().
  [[noreturn]] void rethrow() const;
  std::optional<Error> cause() const;

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

}  // namespace millrace
