#include "millrace/transport/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "millrace/base/text.h"

namespace millrace {
namespace {

Error at_message(Error error, int rank, const MessageTag& tag) {
  error.at_rank(rank);
  if (tag.kind < kFirstEngineKind) {
    error.at_microbatch(tag.microbatch);
  }
  return error;
}

}  // namespace

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

void throw_nothing_came(int to, uint16_t lane, double waited_s) {
  throw Error(ErrorCode::kTimeout,
              fmt::format("rank {} waits at lane {} for a message from anybody, nothing for {:.1f} "
                          "s; see what the other ranks were doing, or allow more time if they only "
                          "are slow",
                          to, lane, waited_s))
      .at_rank(to);
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
      Error(
          ErrorCode::kInternal,
          fmt::format("the box of rank {}{} holds {} messages that nobody took, its limit; rank "
                      "{} cannot send {} (a schedule whose receives do not answer its sends?)",
                      to, message.tag.lane == 0 ? "" : fmt::format(", lane {},", message.tag.lane),
                      max_held, message.from, to_string(message.tag))),
      message.from, message.tag);
}

}  // namespace internal
}  // namespace millrace
