// Mailboxes between threads, over any payload: how ranks of one process meet. Torch-free, so that
// the thread sanitizer runs every schedule through them with integers for tensors.
//
// Sends never block: the message is held until taken. Receives are matched by sender and tag, or
// take whatever came first, and block at most until their deadline. A rank has a box for each lane,
// so that several threads of it can wait at once. abort() ends every present and future wait with
// the first cause. Thread rule: send() from any thread; what is received from one box (rank and
// lane), by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/transport/abort_flag.h"
#include "millrace/transport/internal/box.h"
#include "millrace/transport/message.h"

namespace millrace {

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

[[noreturn]] void throw_receive_timeout(int to, const HeldMessage& wanted, double waited_s,
                                        const std::vector<HeldMessage>& held);
[[noreturn]] void throw_nothing_came(int to, uint16_t lane, double waited_s);
[[noreturn]] void throw_unlike_message(int to, const HeldMessage& message,
                                       const Fingerprint& expected, const Fingerprint& found);
[[noreturn]] void throw_box_full(int to, const HeldMessage& message, std::size_t max_held);

}  // namespace internal

// One mailbox a rank and lane: lane 0's exist from the start, others from their first use on by
// sender or receiver. Bounded: a sender that would leave more than `max_held` messages in one box
// gets Error(kInternal) that names the box, so that a runaway schedule cannot eat the memory.
// Messages with equal sender and tag are taken in the order they were sent. Payload: movable,
// default-constructible.
template <class Payload>
class Mailboxes {
 public:
  // `spin_s` is the longest spin of a wait; kAutomaticSpin asks default_spin_s(num_ranks) for lane
  // 0, and has others only sleep: their threads come on top of those that were counted. Throws
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

  struct Arrival {
    int from = 0;
    MessageTag tag;
    Fingerprint fingerprint;
    Payload payload{};
  };
  // The message of this box that came first, whatever it is. Waits at most `wait_s` for one (0:
  // looks only) and returns whether there was one; negative: until the deadline, and then throws
  // kTimeout. Sleeps without spinning: whoever takes anything is in no hurry. Throws kPeerLost
  // after abort(). `waited_s` as above.
  bool receive_any(int to, uint16_t lane, double wait_s, Arrival& arrival,
                   double* waited_s = nullptr);

  // Wakes everybody; idempotent; keeps the first cause.
  void abort(const Error& cause);
  const AbortFlag& abort_flag() const { return abort_flag_; }

  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  std::size_t held(int rank) const;  // messages waiting in all its boxes

  static constexpr int kAnybody = -1;
  struct Wait {
    int from = 0;    // kAnybody: in receive_any()
    MessageTag tag;  // of kAnybody only the lane
    double waited_s = 0;
  };
  // What the threads that sleep at a rank's boxes wait for, by lane. Any thread.
  std::vector<Wait> waiting(int rank) const;

 private:
  using Box = internal::Box<Payload>;
  using Slot = typename Box::Slot;

  // Lock order: `mutex`, then a box's.
  struct Rank {
    explicit Rank(double spin_s) : worker(spin_s) {}

    Box worker;  // lane 0
    std::mutex mutex;
    std::map<uint16_t, std::unique_ptr<Box>> others;  // they stay as long as the mailboxes
  };

  Rank& rank_at(int rank) const;
  Box& box(int rank, uint16_t lane) const;
  template <class Visit>
  static void for_each_box(Rank& rank, const Visit& visit);
  bool spin_and_take(Box& own, double start_s, uint32_t num_seen, const internal::Wanted& wanted,
                     Slot& taken);
  bool sleep_and_take(Box& own, double start_s, double limit_s, const internal::Wanted& wanted,
                      Slot& taken);

  const double timeout_s_;
  const std::size_t max_held_;
  const double lane_spin_s_;  // of lanes other than 0
  AbortFlag abort_flag_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

template <class Payload>
Mailboxes<Payload>::Mailboxes(int num_ranks, double timeout_s, std::size_t max_held, double spin_s)
    : timeout_s_(timeout_s), max_held_(max_held), lane_spin_s_(spin_s < 0 ? 0 : spin_s) {
  internal::check_timeout(timeout_s);
  if (num_ranks < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "mailboxes need at least one rank, found " + std::to_string(num_ranks));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(spin_s < 0 ? default_spin_s(num_ranks) : spin_s));
  }
}

template <class Payload>
typename Mailboxes<Payload>::Rank& Mailboxes<Payload>::rank_at(int rank) const {
  MILLRACE_CHECK(rank >= 0 && rank < num_ranks(),
                 "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks()));
  return *ranks_[static_cast<std::size_t>(rank)];
}

template <class Payload>
typename Mailboxes<Payload>::Box& Mailboxes<Payload>::box(int rank, uint16_t lane) const {
  Rank& owner = rank_at(rank);
  if (lane == 0) {
    return owner.worker;
  }
  std::lock_guard lock(owner.mutex);
  std::unique_ptr<Box>& found = owner.others[lane];
  if (found == nullptr) {
    found = std::make_unique<Box>(lane_spin_s_);
  }
  return *found;
}

template <class Payload>
template <class Visit>
void Mailboxes<Payload>::for_each_box(Rank& rank, const Visit& visit) {
  visit(rank.worker);
  std::lock_guard lock(rank.mutex);
  for (const auto& [lane, other] : rank.others) {
    visit(*other);
  }
}

template <class Payload>
void Mailboxes<Payload>::send(int from, int to, const MessageTag& tag,
                              const Fingerprint& fingerprint, Payload payload) {
  MILLRACE_CHECK(from >= 0 && from < num_ranks(), "rank " + std::to_string(from));
  Box& target = box(to, tag.lane);
  if (abort_flag_.raised()) {
    abort_flag_.rethrow();
  }
  bool wake = false;
  {
    std::lock_guard lock(target.mutex);
    if (target.num_held >= max_held_) {
      internal::throw_box_full(to, {from, tag}, max_held_);
    }
    target.put({{from, tag}, fingerprint, std::move(payload), Box::kEnd});
    wake = target.sleeping && target.wanted.fits({from, tag});
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
  Box& own = box(to, tag.lane);
  if (waited_s != nullptr) {
    *waited_s = 0;
  }
  if (abort_flag_.raised()) {
    abort_flag_.rethrow();
  }
  const internal::Wanted wanted{{from, tag}, false};
  Slot taken;
  const uint32_t num_seen = own.num_sent.load(std::memory_order_acquire);
  bool found = false;
  {
    std::lock_guard lock(own.mutex);
    found = own.take(wanted, taken);
  }
  if (!found) {
    const double start_s = monotonic_s();
    found = spin_and_take(own, start_s, num_seen, wanted, taken) ||
            sleep_and_take(own, start_s, timeout_s_, wanted, taken);
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
      for (int index = own.first; index != Box::kEnd;) {
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
bool Mailboxes<Payload>::receive_any(int to, uint16_t lane, double wait_s, Arrival& arrival,
                                     double* waited_s) {
  Box& own = box(to, lane);
  if (waited_s != nullptr) {
    *waited_s = 0;
  }
  if (abort_flag_.raised()) {
    abort_flag_.rethrow();
  }
  internal::Wanted wanted{{kAnybody, {}}, true};
  wanted.message.tag.lane = lane;
  Slot taken;
  bool found = false;
  {
    std::lock_guard lock(own.mutex);
    found = own.take(wanted, taken);
  }
  if (!found && wait_s != 0) {
    const double start_s = monotonic_s();
    found = sleep_and_take(own, start_s, wait_s < 0 ? timeout_s_ : wait_s, wanted, taken);
    const double spent_s = monotonic_s() - start_s;
    if (waited_s != nullptr) {
      *waited_s = spent_s;
    }
    if (!found && abort_flag_.raised()) {
      abort_flag_.rethrow();
    }
    if (!found && wait_s < 0) {
      internal::throw_nothing_came(to, lane, spent_s);
    }
  }
  if (found) {
    arrival = {taken.message.from, taken.message.tag, taken.fingerprint, std::move(taken.payload)};
  }
  return found;
}

template <class Payload>
bool Mailboxes<Payload>::spin_and_take(Box& own, double start_s, uint32_t num_seen,
                                       const internal::Wanted& wanted, Slot& taken) {
  const auto changed = [&] {
    return own.num_sent.load(std::memory_order_acquire) != num_seen || abort_flag_.raised();
  };
  while (own.spin.until(start_s, changed) && !abort_flag_.raised()) {
    num_seen = own.num_sent.load(std::memory_order_acquire);
    std::lock_guard lock(own.mutex);
    if (own.take(wanted, taken)) {
      own.spin.learn(true);
      return true;
    }
  }
  own.spin.learn(false);
  return false;
}

template <class Payload>
bool Mailboxes<Payload>::sleep_and_take(Box& own, double start_s, double limit_s,
                                        const internal::Wanted& wanted, Slot& taken) {
  const auto deadline = internal::deadline_after(start_s, limit_s);
  std::unique_lock lock(own.mutex);
  own.wanted = wanted;
  own.wait_start_s = start_s;
  own.sleeping = true;
  bool in_time = true;
  bool found = own.take(wanted, taken);
  while (!found && in_time && !abort_flag_.raised()) {
    in_time = own.wake.wait_until(lock, deadline) == std::cv_status::no_timeout;
    found = own.take(wanted, taken);
  }
  own.sleeping = false;
  return found;
}

template <class Payload>
void Mailboxes<Payload>::abort(const Error& cause) {
  abort_flag_.raise(cause);
  // A box that is made later is made after this, so that its owner finds the flag raised.
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    for_each_box(*rank, [](Box& each) {
      // Under the lock a receiver has either not yet asked the flag, or sleeps and hears the call.
      { std::lock_guard lock(each.mutex); }
      each.wake.notify_all();
    });
  }
}

template <class Payload>
std::vector<typename Mailboxes<Payload>::Wait> Mailboxes<Payload>::waiting(int rank) const {
  std::vector<Wait> waits;
  for_each_box(rank_at(rank), [&](const Box& each) {
    std::lock_guard lock(each.mutex);
    if (each.sleeping) {
      const internal::HeldMessage& wanted = each.wanted.message;
      waits.push_back({wanted.from, wanted.tag, monotonic_s() - each.wait_start_s});
    }
  });
  return waits;
}

template <class Payload>
std::size_t Mailboxes<Payload>::held(int rank) const {
  std::size_t held = 0;
  for_each_box(rank_at(rank), [&](const Box& each) {
    std::lock_guard lock(each.mutex);
    held += each.num_held;
  });
  return held;
}

}  // namespace millrace
