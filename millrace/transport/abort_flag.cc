#include "millrace/transport/abort_flag.h"

#include <fmt/format.h>

namespace millrace {

bool AbortFlag::raise(const Error& cause) {
  std::lock_guard lock(mutex_);
  // A rank that was told of a failure may get here before the rank that failed: what it was told
  // (kPeerLost) gives way to the failure itself.
  const bool first = !cause_.has_value();
  const bool second_hand = !first && cause_->code() == ErrorCode::kPeerLost;
  if (first || (second_hand && cause.code() != ErrorCode::kPeerLost)) {
    cause_ = cause;
  }
  raised_.store(true, std::memory_order_release);
  return first;
}

void AbortFlag::rethrow() const {
  const std::optional<Error> first = cause();
  MILLRACE_CHECK(first.has_value(), "rethrow() before raise()");
  const std::string who =
      first->rank().has_value() ? fmt::format("rank {}", *first->rank()) : "the run";
  throw Error(ErrorCode::kPeerLost, fmt::format("{} failed: {}", who, first->what()));
}

std::optional<Error> AbortFlag::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace millrace
