#include "millrace/transport/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "millrace/base/text.h"
#include "millrace/core/action.h"

namespace millrace {
namespace {

// Numbers of at::ScalarType, which this half cannot include; a test of `comm` holds the two
// together.
constexpr std::array<const char*, 16> kDtypeNames = {
    "uint8",     "int8",      "int16",      "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool",  "qint8", "quint8",  "qint32",  "bfloat16"};

// Engines number their own messages from here on.
constexpr uint8_t kFirstEngineKind = 100;

bool is_border(const MessageTag& tag) { return tag.kind < kFirstEngineKind; }

std::string dtype_name(uint8_t dtype) {
  return dtype < kDtypeNames.size() ? kDtypeNames[dtype] : fmt::format("dtype {}", dtype);
}

Error at_message(Error error, int rank, const MessageTag& tag) {
  error.at_rank(rank);
  if (is_border(tag)) {
    error.at_microbatch(tag.microbatch);
  }
  return error;
}

}  // namespace

std::string to_string(const MessageTag& tag) {
  if (is_border(tag)) {
    return fmt::format("{} of stage {}, microbatch {}{}",
                       to_string(static_cast<ActionKind>(tag.kind)), tag.stage, tag.microbatch,
                       tag.tensor == 0 ? "" : fmt::format(", tensor {}", tag.tensor));
  }
  return fmt::format("message kind {}, stage {}, number {}", tag.kind, tag.stage, tag.microbatch);
}

std::string to_string(const Fingerprint& fingerprint) {
  if (fingerprint.dtype == Fingerprint::kNoTensor) {
    return "no tensor";
  }
  if (fingerprint.dtype == Fingerprint::kBarrier) {
    return "a barrier";
  }
  const std::size_t num_sizes =
      std::min<std::size_t>(fingerprint.num_dimensions, fingerprint.sizes.size());
  std::vector<std::string> sizes;
  for (std::size_t i = 0; i < num_sizes; ++i) {
    sizes.push_back(std::to_string(fingerprint.sizes[i]));
  }
  if (fingerprint.num_dimensions > num_sizes) {
    sizes.back() += fmt::format(" in {} dimensions", fingerprint.num_dimensions - num_sizes + 1);
  }
  return fmt::format("{} [{}]", dtype_name(fingerprint.dtype), join(sizes, ", "));
}

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

double default_spin_s(int num_ranks) {
  constexpr double kSpinS = 30e-6;  // a few times what waking a sleeper takes
  const unsigned num_hardware_threads = std::thread::hardware_concurrency();
  return num_ranks <= static_cast<int>(num_hardware_threads) ? kSpinS : 0.0;
}

namespace internal {

void check_timeout(double timeout_s) {
  if (!(timeout_s > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a wait needs a time limit above 0 s, found {} s", timeout_s));
  }
}

std::chrono::steady_clock::time_point deadline_after(double start_s, double timeout_s) {
  // Beyond a century the clock's integers would overflow.
  const std::chrono::duration<double> since_epoch(start_s + std::min(timeout_s, 3e9));
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(since_epoch));
}

void throw_receive_timeout(int to, const HeldMessage& wanted, double waited_s,
                           const std::vector<HeldMessage>& held) {
  constexpr std::size_t kShown = 4;
  std::string box = "its box is empty";
  if (!held.empty()) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min(held.size(), kShown); ++i) {
      parts.push_back(fmt::format("{} from rank {}", to_string(held[i].tag), held[i].from));
    }
    box = fmt::format("its box holds {}: {}{}", held.size(), join(parts, "; "),
                      held.size() > kShown ? "; ..." : "");
  }
  throw at_message(
      Error(ErrorCode::kTimeout,
            fmt::format("rank {} waits for {} from rank {}, nothing for {:.1f} s; {}; see what "
                        "rank {} was doing, or allow more time if it only is slow",
                        to, to_string(wanted.tag), wanted.from, waited_s, box, wanted.from)),
      to, wanted.tag);
}

void throw_unlike_message(int to, const HeldMessage& message, const Fingerprint& expected,
                          const Fingerprint& found) {
  throw at_message(
      Error(ErrorCode::kInvalidArgument,
            fmt::format("rank {} expected {} as {} from rank {}, found {}; what a stage puts out "
                        "must be what the next one takes in",
                        to, to_string(expected), to_string(message.tag), message.from,
                        to_string(found))),
      to, message.tag);
}

void throw_box_full(int to, const HeldMessage& message, std::size_t max_held) {
  throw at_message(
      Error(ErrorCode::kInternal,
            fmt::format("the box of rank {} holds {} messages that nobody took, its limit; rank {} "
                        "cannot send {} (a schedule whose receives do not answer its sends?)",
                        to, max_held, message.from, to_string(message.tag))),
      message.from, message.tag);
}

}  // namespace internal
}  // namespace millrace
