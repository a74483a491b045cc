// One mailbox: messages in order of arrival, and the thread that waits at it. Of mailbox.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "millrace/transport/internal/spin.h"
#include "millrace/transport/message.h"

namespace millrace::internal {

struct HeldMessage {
  int from = 0;
  MessageTag tag;
};
// What a receiver wants: this message, or any at all.
struct Wanted {
  HeldMessage message;
  bool any = false;
  bool fits(const HeldMessage& found) const {
    return any || (found.from == message.from && found.tag == message.tag);
  }
};
// Slots form two linked lists, of messages in order of arrival and of free slots, so that a message
// costs no allocation once the box has seen its fullest moment.
template <class Payload>
struct alignas(64) Box {
  static constexpr int kEnd = -1;

  struct Slot {
    HeldMessage message;
    Fingerprint fingerprint;
    Payload payload{};
    int next = kEnd;
  };

  explicit Box(double spin_s) : spin(spin_s) {}

  // Both need the lock. take() moves the first message that fits to `taken`, if there is one.
  void put(Slot message);
  bool take(const Wanted& wanted_now, Slot& taken);

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::vector<Slot> slots;
  int first = kEnd;
  int last = kEnd;
  int first_free = kEnd;
  std::size_t num_held = 0;
  bool sleeping = false;  // the owner sleeps, until `wanted` comes
  Wanted wanted;          // valid while sleeping, like:
  double wait_start_s = 0;
  AdaptiveSpin spin;  // the owner's
  // A hint to the spinning owner that a look is worth while. Raised after the lock is released, so
  // that the owner does not run into it.
  alignas(64) std::atomic<uint32_t> num_sent{0};
};

template <class Payload>
void Box<Payload>::put(Slot message) {
  if (first_free == kEnd) {
    slots.emplace_back();
    first_free = static_cast<int>(slots.size()) - 1;
  }
  const int index = first_free;
  Slot& slot = slots[static_cast<std::size_t>(index)];
  first_free = slot.next;
  slot = std::move(message);
  slot.next = kEnd;
  if (last == kEnd) {
    first = index;
  } else {
    slots[static_cast<std::size_t>(last)].next = index;
  }
  last = index;
  ++num_held;
}

template <class Payload>
bool Box<Payload>::take(const Wanted& wanted_now, Slot& taken) {
  int previous = kEnd;
  for (int index = first; index != kEnd;) {
    Slot& slot = slots[static_cast<std::size_t>(index)];
    if (!wanted_now.fits(slot.message)) {
      previous = index;
      index = slot.next;
      continue;
    }
    (previous == kEnd ? first : slots[static_cast<std::size_t>(previous)].next) = slot.next;
    if (last == index) {
      last = previous;
    }
    taken.message = slot.message;
    taken.fingerprint = slot.fingerprint;
    taken.payload = std::exchange(slot.payload, Payload{});
    slot.next = std::exchange(first_free, index);
    --num_held;
    return true;
  }
  return false;
}

}  // namespace millrace::internal
