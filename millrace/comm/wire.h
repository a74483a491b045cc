// Wire: tensors between the processes of a world, carried by an engine that exists (c10d's Gloo, an
// MPI). An engine is one implementation of this; `joined` builds ranks, deadlines and reductions on
// it. Frames between two processes arrive in the order they were sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/transport/mailbox.h"

namespace millrace {

// What goes ahead of a tensor: who, what, which shape. Plain bytes of one layout on all machines of
// a world (compared when they join). A small tensor travels inside.
struct Frame {
  static constexpr std::size_t kBytes = 1024;
  static constexpr std::size_t kInlineBytes = 896;
  static constexpr uint32_t kMagic = 0x4d52'4632;

  enum class Kind : uint8_t {
    kMessage,  // between ranks
    kNote,     // between processes: text
    kAbort,    // a failure, as text
    kBye,      // the last frame of a process that ends well
  };

  uint32_t magic = kMagic;
  Kind kind = Kind::kMessage;
  uint8_t tag_kind = 0;
  uint8_t dtype = Fingerprint::kNoTensor;
  uint8_t num_dimensions = 0;
  int32_t from_rank = 0;
  int32_t to_rank = 0;
  int32_t stage = 0;
  int32_t tensor = 0;
  int32_t to_stage = 0;
  uint32_t slot = 0;  // of a payload whose place the receiver may know beforehand, see expect()
  int64_t microbatch = 0;
  std::array<int64_t, 6> sizes{};
  uint64_t sequence = 0;  // of frames from this process to that one, from 0
  uint64_t bytes = 0;     // of the payload
  uint16_t lane = 0;
  alignas(16) std::array<std::byte, kInlineBytes> inlined;

  bool is_inline() const { return bytes <= kInlineBytes; }
  MessageTag tag() const { return {tag_kind, stage, microbatch, tensor, to_stage, lane}; }
  Fingerprint fingerprint() const { return {dtype, num_dimensions, sizes}; }
};
static_assert(sizeof(Frame) <= Frame::kBytes);

// What two builds must agree on to understand each other's frames.
std::string frame_layout();
// This machine's name, by which processes of one host know each other.
std::string own_host_name();

// Who gets what arrives. Called on threads of the wire, one at a time for each sending process.
class WireListener {
 public:
  virtual ~WireListener() = default;
  // Where the payload of a frame that has one shall be received: contiguous, on the CPU, of exactly
  // frame.bytes. Not called for inlined payloads.
  virtual at::Tensor landing(const Frame& frame) = 0;
  // A frame is here whole. `payload`: what landing() gave; undefined for inlined ones.
  virtual void on_frame(int from_process, const Frame& frame, at::Tensor payload) = 0;
  // The other process ended without a bye, or nothing can be heard from it any more.
  virtual void on_lost(int process, const std::string& why) = 0;
};

// The engine's own all-reduce over some processes.
class NativeReduction {
 public:
  virtual ~NativeReduction() = default;
  // Sums a contiguous float32 or float64 tensor in place. Throws kTimeout or kPeerLost.
  virtual void all_reduce_sum(at::Tensor& tensor, double timeout_s) = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::string engine() const = 0;  // "gloo", "mpi"
  virtual int process() const = 0;
  virtual int num_processes() const = 0;
  virtual std::string host_of(int process) const = 0;

  // Frames are delivered from here on. Once; `listener` outlives the wire or its close().
  virtual void start(WireListener& listener) = 0;

  // Queues a frame and its payload (contiguous, CPU; not defined when inlined); never blocks; any
  // thread. The payload is held, and must not change, until it has left: sent(). Returns the number
  // of the frame among those to `process`.
  virtual uint64_t send(int process, const Frame& frame, at::Tensor payload) = 0;
  // The payload of the next frame of this slot (> 0, of one frame at a time) from `process` is to
  // be received into `part`: an engine that must ask for a payload before it is sent can then ask
  // now. Any thread. `part` is received into only when landing() gives it, too, or gives nothing
  // better.
  virtual void expect(int /*process*/, uint32_t /*slot*/, const at::Tensor& /*part*/) {}
  // The frame of the slot is through: nothing is expected there any more.
  virtual void forget(int /*process*/, uint32_t /*slot*/) {}
  // Blocks until the frame of that number and all before it have left this process's memory, at
  // most `timeout_s`; false on timeout or when the other process is lost.
  virtual bool wait_sent(int process, uint64_t number, double timeout_s) = 0;

  // Collective over `processes` (ascending, this one among them), in the same order on all; `name`
  // is the same on all and never used twice. Throws kTimeout, kPeerLost.
  virtual std::unique_ptr<NativeReduction> native(const std::vector<int>& processes,
                                                  const std::string& name, double timeout_s) = 0;

  // Says bye and waits a while for the others' (at most `timeout_s`), then ends all threads. After
  // a failure: ends them at once (`failed`). Idempotent; nothing is delivered afterwards.
  virtual void close(double timeout_s, bool failed) = 0;
};

}  // namespace millrace
