// Executes collective programs on tensors, message by message, over whatever carries them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "millrace/collective/codec.h"
#include "millrace/collective/program.h"
#include "millrace/comm/communicator.h"

namespace millrace {

// One rank's way to others, as programs need it. Used from that rank's thread.
class Channel {
 public:
  virtual ~Channel() = default;
  // Never blocks. The receiver gets the values that `part` has now and may have until finish().
  virtual void send_part(int to, const MessageTag& tag, const at::Tensor& part) = 0;
  // The message may be received straight into `part` from now on.
  virtual void land(int from, const MessageTag& tag, const at::Tensor& part) = 0;
  // Blocks until the message is here: in `part`. Adds to `wait_s`. Throws what
  // Communicator::receive throws.
  virtual void receive_part(int from, const MessageTag& tag, at::Tensor& part, double& wait_s) = 0;
  // Blocks until all parts that were sent may be written again.
  virtual void finish() = 0;
};

// The program of one member of a reduction, run in place on `data` (1-D, contiguous, float32 or
// float64). `ranks`: of the members, in their order; `tag`: equal on all members and of no other
// message under way between them: its `tensor` is the number of the first message. `scratch` grows
// as needed. With a codec (float32 only; null: none) messages travel encoded and sums are of what
// is decoded; all members end with the same bits. Returns the seconds blocked.
double run_program(const MemberProgram& program, const std::vector<int>& ranks, MessageTag tag,
                   at::Tensor& data, at::Tensor& scratch, Channel& channel,
                   const Codec* codec = nullptr);

}  // namespace millrace
