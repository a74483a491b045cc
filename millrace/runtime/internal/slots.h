// The microbatches that a stage has in flight on a rank. Used from the rank's thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/core/action.h"
#include "millrace/model/stage.h"

namespace millrace::internal {

// One microbatch between its first and last action of a stage. An empty part has no samples: its
// messages are undefined tensors and nothing is computed.
struct Slot {
  int64_t microbatch = kNone;
  int64_t samples = 0;
  bool computed = false;                  // B, or I and W, are done
  int num_sent_back = 0;                  // stages that got their gradients
  Tensors inputs;                         // by the stage's inputs(): received, or loaded
  Tensors outputs;                        // by the stage's outputs(), to be sent
  std::vector<BorderGradient> gradients;  // received for the backward
  Tensors input_gradients;                // by inputs(), to be sent back
  Stash stash;
};

// The slots of all microbatches in flight. Those always lie in a window of consecutive
// microbatches, so a power-of-two ring indexed by the microbatch needs no search.
class SlotRing {
 public:
  explicit SlotRing(int64_t window)
      : slots_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(window, 2)))) {}

  Slot& at(int64_t microbatch) {
    Slot& slot = slots_[static_cast<uint64_t>(microbatch) & (slots_.size() - 1)];
    if (slot.microbatch != microbatch) {
      MILLRACE_CHECK(slot.microbatch == kNone, "two microbatches in flight share a slot");
      slot.microbatch = microbatch;
    }
    return slot;
  }

  template <typename Visit>
  void visit(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.microbatch != kNone) {
        visit(slot);
      }
    }
  }

  // Frees the slot once nothing of its microbatch is to come: gradients go to `num_sources` stages.
  static void release_when_done(Slot& slot, int num_sources) {
    if (slot.computed && slot.num_sent_back == num_sources) {
      slot = Slot{};
    }
  }

 private:
  std::vector<Slot> slots_;
};

// Length of the shortest run of consecutive microbatches that holds all that are in flight on a
// rank at any moment: between their first and their last action of the list, of whatever stage.
int64_t flight_window(const ActionList& list);

}  // namespace millrace::internal
