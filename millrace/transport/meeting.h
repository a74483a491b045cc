// Meeting: the point where all ranks of a group on one process arrive with something and leave
// together. The ground under in-process collectives. Torch-free.
//
// Thread rule: each member calls arrive() from its own thread, in the same order of meetings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/transport/mailbox.h"

namespace millrace {

// A reusable barrier of some members with a deadline, that hands every member the others' pointers.
class Meeting {
 public:
  // `abort` ends waits; it must outlive the meeting. `ranks` are world ranks, for messages; a
  // member is an index into them. `spin_s` as for Mailboxes; kAutomaticSpin asks default_spin_s of
  // the number of members.
  Meeting(std::vector<int> ranks, double timeout_s, const AbortFlag& abort,
          double spin_s = kAutomaticSpin);
  ~Meeting();

  // Blocks until all members arrived, with equal sequence numbers and fingerprints, then returns
  // everybody's `item` in member order; valid until this member's next arrive(). Spins briefly,
  // then sleeps. `waited_s` receives the seconds spent blocked, also when this throws.
  //
  // Throws kInvalidArgument on unlike fingerprints or sequence numbers: on all members, showing
  // each member's; all are free to meet again. Throws kTimeout naming the members that are missing:
  // the meeting is over then, and whoever waits or comes later gets kPeerLost that quotes the
  // timeout, so that nobody touches what the one that left had brought. Throws kPeerLost after the
  // abort flag was raised.
  const std::vector<void*>& arrive(int member, uint64_t sequence, const Fingerprint& fingerprint,
                                   void* item, double* waited_s = nullptr);

  void wake();  // after the abort flag was raised

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
