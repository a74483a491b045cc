// Communicator: tensors between ranks, whatever engine carries them. Users (runtime, exchange) see
// only this header; engines live in folders below (inproc/; others join without touching users).
//
// One Communicator object a rank, used from that rank's thread only. Every operation has a
// deadline, a sequence number or tag, and a fingerprint (shape, dtype).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/transport/mailbox.h"

namespace millrace {

// Seconds blocked in and bytes moved by one finished operation, for the trace. A point-to-point
// message counts its tensor's bytes; a reduction what reduce-scatter plus all-gather sends for this
// member, 2(r-1) x its share, whichever way the engine takes, so that traces of different engines
// compare.
struct Transfer {
  double wait_s = 0;
  int64_t bytes = 0;
};

// A message as receive_any() finds it.
struct Arrived {
  int from = 0;
  MessageTag tag;
  at::Tensor tensor;
};

// Ranks that reduce together; made by Communicator::group, in the same order on every member.
class Group {
 public:
  virtual ~Group() = default;
  virtual const std::vector<int>& ranks() const = 0;
  virtual int member() const = 0;  // this rank's index in ranks()

  // Sums a contiguous float32 or float64 tensor over the members, in place, adding in member order
  // on every element, so that the result is bit for bit the same on all members and for any timing.
  // Blocks at most the engine's timeout. Throws kTimeout, kPeerLost (the group is unusable
  // afterwards, the values of `tensor` undefined); kInvalidArgument on unlike shapes or dtypes and
  // on what cannot be summed: on all members, before any element changed.
  virtual Transfer all_reduce_sum(at::Tensor& tensor) = 0;
  virtual Transfer barrier() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Never blocks; the tensor is held until taken. An undefined tensor is a valid message (an empty
  // part). The receiver gets the tensor itself where the engine can (no copy): do not write to it
  // afterwards.
  virtual Transfer send(int to, const MessageTag& tag, at::Tensor tensor) = 0;

  // Tells the engine that a message will be wanted, so that it can be fetched early. May be
  // skipped.
  virtual void expect(int from, const MessageTag& tag, const Fingerprint& fingerprint) = 0;

  // Blocks until the message is here. `expected` null: any shape; `transfer` null: not wanted.
  // Errors: see Mailboxes::receive.
  virtual at::Tensor receive(int from, const MessageTag& tag, const Fingerprint* expected,
                             Transfer* transfer) = 0;

  // The next message in this rank's box of `lane`, from anybody and with any tag, in the order of
  // arrival. Blocks at most `wait_s` (0: looks only) and says whether there was one; a negative
  // `wait_s` means the engine's deadline, and then kTimeout. Adds to `transfer` when that is given.
  // Throws kPeerLost after an abort. A thread that waits at a lane is the only one that does, and
  // no group receives there: its messages would be taken, too.
  virtual bool receive_any(uint16_t lane, double wait_s, Arrived& arrived, Transfer* transfer) = 0;

  // This rank's communicator for another of its threads, whose groups meet apart from this one's
  // and receive at `lane`. Made on every member of a group that is asked of it.
  virtual std::unique_ptr<Communicator> on_lane(uint16_t lane) = 0;

  // Collective over `ranks` (ascending, must hold this rank): all members call it in the same
  // order, each group once. `stage`: whose replicas meet, so that several stages on the same ranks
  // have groups of their own; kNoStage for other purposes. Throws kInvalidArgument for other ranks.
  // The group must outlive neither this communicator nor its engine's world.
  static constexpr int kNoStage = -1;
  virtual std::unique_ptr<Group> group(const std::vector<int>& ranks, int stage) = 0;
  std::unique_ptr<Group> group(const std::vector<int>& ranks) { return group(ranks, kNoStage); }

  // Ends every wait of every rank with kPeerLost and this cause; the first cause wins. Any thread.
  virtual void abort(const Error& cause) = 0;
};

// Fingerprint of a tensor; of an undefined one, Fingerprint::kNoTensor.
Fingerprint fingerprint_of(const at::Tensor& tensor);

}  // namespace millrace
