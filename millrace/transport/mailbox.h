// Mailboxes between threads, over any payload: how ranks of one process meet. Torch-free, so that
// the thread sanitizer runs every schedule through them with integers for tensors.
//
// Sends never block: the message is held until taken. Receives are matched by (sender, kind, stage,
// microbatch) and block at most until their deadline. abort() ends every present and future wait
// with the first cause. Thread rule: send() from any thread; receive() of one box from its owner
// rank's thread only.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/transport/internal/spin.h"

namespace millrace {

// What a message is; equal on both sides. Travels in place of order: any interleaving is matched
// right.
struct MessageTag {
  uint8_t kind = 0;  // ActionKind of the send for stage borders; engines number their own above 100
  int32_t stage = 0;       // of the sender's action
  int64_t microbatch = 0;  // or sequence number
  int32_t tensor = 0;      // which of those that one action hands over
  int32_t to_stage = 0;    // of the receiver's action
  bool operator==(const MessageTag&) const = default;
};
// "SEND_F of stage 1, microbatch 7"; an engine's own: "message kind 101, stage 0, number 7".
std::string to_string(const MessageTag& tag);

// What a payload looks like: compared on receive, so that a wrong shape or dtype is an error that
// shows both.
struct Fingerprint {
  static constexpr uint8_t kNoTensor = 255;
  static constexpr uint8_t kBarrier = 254;  // a meeting that brings nothing

  uint8_t dtype = 0;  // at::ScalarType's number, or one of the above
  uint8_t num_dimensions = 0;
  std::array<int64_t, 6> sizes{};  // beyond six dimensions the last holds the product of the rest
  bool operator==(const Fingerprint&) const = default;
};
std::string to_string(
    const Fingerprint& fingerprint);  // "float32 [4, 3]", "no tensor", "a barrier"

// First cause of a failure, told to everybody who waits. Any thread.
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

// How long waits spin before they sleep, for `num_ranks` threads that wait for each other: some
// tens of microseconds when every one can have a hardware thread of its own, else nothing, because
// then the one waited for may need the core.
double default_spin_s(int num_ranks);
inline constexpr double kAutomaticSpin = -1;

namespace internal {

// Calls of mailbox and meeting that need no template. `timeout_s` must be positive:
// Error(kInvalidArgument) else.
void check_timeout(double timeout_s);
std::chrono::steady_clock::time_point deadline_after(double start_s, double timeout_s);

struct HeldMessage {
  int from = 0;
  MessageTag tag;
};
[[noreturn]] void throw_receive_timeout(int to, const HeldMessage& wanted, double waited_s,
                                        const std::vector<HeldMessage>& held);
[[noreturn]] void throw_unlike_message(int to, const HeldMessage& message,
                                       const Fingerprint& expected, const Fingerprint& found);
[[noreturn]] void throw_box_full(int to, const HeldMessage& message, std::size_t max_held);

}  // namespace internal

// One mailbox a rank. Bounded: a sender that would leave more than `max_held` messages in one box
// gets Error(kInternal) that names the box, so that a runaway schedule cannot eat the memory.
// Messages with equal sender and tag are taken in the order they were sent. Payload: movable,
// default-constructible.
template <class Payload>
class Mailboxes {
 public:
  // `spin_s` is the longest spin of a wait; kAutomaticSpin asks default_spin_s(num_ranks). Throws
  // kInvalidArgument unless num_ranks >= 1 and timeout_s > 0.
  Mailboxes(int num_ranks, double timeout_s, std::size_t max_held = 65536,
            double spin_s = kAutomaticSpin);

  // Throws kPeerLost after abort(), so that a rank that only sends ends, too. A rank may send to
  // itself.
  void send(int from, int to, const MessageTag& tag, const Fingerprint& fingerprint,
            Payload payload);

  // Spins briefly, then sleeps. `expected` may be null when any shape will do. `waited_s`, when
  // given, receives the seconds spent blocked, also when this throws. Throws kTimeout naming who
  // waits for what from whom and for how long, kPeerLost after abort(), kInvalidArgument on a
  // fingerprint that differs (both are shown; the message is taken all the same).
  Payload receive(int to, int from, const MessageTag& tag, const Fingerprint* expected,
                  double* waited_s = nullptr);

  // Wakes everybody; idempotent; keeps the first cause.
  void abort(const Error& cause);
  const AbortFlag& abort_flag() const { return abort_flag_; }

  int num_ranks() const { return static_cast<int>(boxes_.size()); }
  std::size_t held(int rank) const;  // messages waiting in a box

  struct Wait {
    int from = 0;
    MessageTag tag;
    double waited_s = 0;
  };
  // What the owner of a box sleeps for, if it does. Any thread.
  std::optional<Wait> waiting(int rank) const;

 private:
  static constexpr int kEnd = -1;

  struct Slot {
    internal::HeldMessage message;
    Fingerprint fingerprint;
    Payload payload{};
    int next = kEnd;
  };

  // Slots form two linked lists, of messages in order of arrival and of free slots, so that a
  // message costs no allocation once the box has seen its fullest moment.
  struct alignas(64) Box {
    explicit Box(double spin_s) : spin(spin_s) {}

    mutable std::mutex mutex;
    std::condition_variable wake;
    std::vector<Slot> slots;
    int first = kEnd;
    int last = kEnd;
    int first_free = kEnd;
    std::size_t num_held = 0;
    bool sleeping = false;         // the owner sleeps, until `wanted` comes
    internal::HeldMessage wanted;  // valid while sleeping, like:
    double wait_start_s = 0;
    internal::AdaptiveSpin spin;  // the owner's
    // A hint to the spinning owner that a look is worth while. Raised after the lock is released,
    // so that the owner does not run into it.
    alignas(64) std::atomic<uint32_t> num_sent{0};
  };

  Box& box(int rank) const;
  // Both need the box's lock.
  static void put(Box& box, Slot message);
  static bool take(Box& box, int from, const MessageTag& tag, Slot& taken);
  bool wait_and_take(Box& own, double start_s, uint32_t num_seen,
                     const internal::HeldMessage& wanted, Slot& taken);

  const double timeout_s_;
  const std::size_t max_held_;
  AbortFlag abort_flag_;
  std::vector<std::unique_ptr<Box>> boxes_;
};

template <class Payload>
Mailboxes<Payload>::Mailboxes(int num_ranks, double timeout_s, std::size_t max_held, double spin_s)
    : timeout_s_(timeout_s), max_held_(max_held) {
  internal::check_timeout(timeout_s);
  if (num_ranks < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "mailboxes need at least one rank, found " + std::to_string(num_ranks));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    boxes_.push_back(std::make_unique<Box>(spin_s < 0 ? default_spin_s(num_ranks) : spin_s));
  }
}

template <class Payload>
typename Mailboxes<Payload>::Box& Mailboxes<Payload>::box(int rank) const {
  MILLRACE_CHECK(rank >= 0 && rank < num_ranks(),
                 "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks()));
  return *boxes_[static_cast<std::size_t>(rank)];
}

template <class Payload>
void Mailboxes<Payload>::put(Box& box, Slot message) {
  if (box.first_free == kEnd) {
    box.slots.emplace_back();
    box.first_free = static_cast<int>(box.slots.size()) - 1;
  }
  const int index = box.first_free;
  Slot& slot = box.slots[static_cast<std::size_t>(index)];
  box.first_free = slot.next;
  slot = std::move(message);
  slot.next = kEnd;
  if (box.last == kEnd) {
    box.first = index;
  } else {
    box.slots[static_cast<std::size_t>(box.last)].next = index;
  }
  box.last = index;
  ++box.num_held;
}

template <class Payload>
bool Mailboxes<Payload>::take(Box& box, int from, const MessageTag& tag, Slot& taken) {
  int previous = kEnd;
  for (int index = box.first; index != kEnd;) {
    Slot& slot = box.slots[static_cast<std::size_t>(index)];
    if (slot.message.from != from || !(slot.message.tag == tag)) {
      previous = index;
      index = slot.next;
      continue;
    }
    (previous == kEnd ? box.first : box.slots[static_cast<std::size_t>(previous)].next) = slot.next;
    if (box.last == index) {
      box.last = previous;
    }
    taken.message = slot.message;
    taken.fingerprint = slot.fingerprint;
    taken.payload = std::exchange(slot.payload, Payload{});
    slot.next = std::exchange(box.first_free, index);
    --box.num_held;
    return true;
  }
  return false;
}

template <class Payload>
void Mailboxes<Payload>::send(int from, int to, const MessageTag& tag,
                              const Fingerprint& fingerprint, Payload payload) {
  MILLRACE_CHECK(from >= 0 && from < num_ranks(), "rank " + std::to_string(from));
  Box& target = box(to);
  if (abort_flag_.raised()) {
    abort_flag_.rethrow();
  }
  bool wake = false;
  {
    std::lock_guard lock(target.mutex);
    if (target.num_held >= max_held_) {
      internal::throw_box_full(to, {from, tag}, max_held_);
    }
    put(target, {{from, tag}, fingerprint, std::move(payload), kEnd});
    wake = target.sleeping && target.wanted.from == from && target.wanted.tag == tag;
  }
  target.num_sent.fetch_add(1, std::memory_order_release);
  if (wake) {
    target.wake.notify_one();
  }
}

template <class Payload>
Payload Mailboxes<Payload>::receive(int to, int from, const MessageTag& tag,
                                    const Fingerprint* expected, double* waited_s) {
  MILLRACE_CHECK(from >= 0 && from < num_ranks(), "rank " + std::to_string(from));
  Box& own = box(to);
  if (waited_s != nullptr) {
    *waited_s = 0;
  }
  if (abort_flag_.raised()) {
    abort_flag_.rethrow();
  }
  Slot taken;
  const uint32_t num_seen = own.num_sent.load(std::memory_order_acquire);
  bool found = false;
  {
    std::lock_guard lock(own.mutex);
    found = take(own, from, tag, taken);
  }
  if (!found) {
    const double start_s = monotonic_s();
    found = wait_and_take(own, start_s, num_seen, {from, tag}, taken);
    const double spent_s = monotonic_s() - start_s;
    if (waited_s != nullptr) {
      *waited_s = spent_s;
    }
    if (!found && abort_flag_.raised()) {
      abort_flag_.rethrow();
    }
    if (!found) {
      std::vector<internal::HeldMessage> others;
      std::lock_guard lock(own.mutex);
      for (int index = own.first; index != kEnd;) {
        const Slot& slot = own.slots[static_cast<std::size_t>(index)];
        others.push_back(slot.message);
        index = slot.next;
      }
      internal::throw_receive_timeout(to, {from, tag}, spent_s, others);
    }
  }
  if (expected != nullptr && !(*expected == taken.fingerprint)) {
    internal::throw_unlike_message(to, taken.message, *expected, taken.fingerprint);
  }
  return std::move(taken.payload);
}

template <class Payload>
bool Mailboxes<Payload>::wait_and_take(Box& own, double start_s, uint32_t num_seen,
                                       const internal::HeldMessage& wanted, Slot& taken) {
  const auto changed = [&] {
    return own.num_sent.load(std::memory_order_acquire) != num_seen || abort_flag_.raised();
  };
  while (own.spin.until(start_s, changed) && !abort_flag_.raised()) {
    num_seen = own.num_sent.load(std::memory_order_acquire);
    std::lock_guard lock(own.mutex);
    if (take(own, wanted.from, wanted.tag, taken)) {
      own.spin.learn(true);
      return true;
    }
  }
  own.spin.learn(false);
  const auto deadline = internal::deadline_after(start_s, timeout_s_);
  std::unique_lock lock(own.mutex);
  own.wanted = wanted;
  own.wait_start_s = start_s;
  own.sleeping = true;
  bool in_time = true;
  bool found = take(own, wanted.from, wanted.tag, taken);
  while (!found && in_time && !abort_flag_.raised()) {
    in_time = own.wake.wait_until(lock, deadline) == std::cv_status::no_timeout;
    found = take(own, wanted.from, wanted.tag, taken);
  }
  own.sleeping = false;
  return found;
}

template <class Payload>
void Mailboxes<Payload>::abort(const Error& cause) {
  abort_flag_.raise(cause);
  for (const std::unique_ptr<Box>& each : boxes_) {
    // Under the lock a receiver has either not yet asked the flag, or sleeps and hears the call.
    { std::lock_guard lock(each->mutex); }
    each->wake.notify_all();
  }
}

template <class Payload>
std::optional<typename Mailboxes<Payload>::Wait> Mailboxes<Payload>::waiting(int rank) const {
  const Box& each = box(rank);
  std::lock_guard lock(each.mutex);
  if (!each.sleeping) {
    return std::nullopt;
  }
  return Wait{each.wanted.from, each.wanted.tag, monotonic_s() - each.wait_start_s};
}

template <class Payload>
std::size_t Mailboxes<Payload>::held(int rank) const {
  const Box& each = box(rank);
  std::lock_guard lock(each.mutex);
  return each.num_held;
}

}  // namespace millrace
