#include "millrace/comm/c10d/gloo_wire.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "millrace/base/clock.h"

namespace millrace {
namespace {

using c10d::ProcessGroupGloo;

constexpr int kFrameTag = 1;
constexpr int kPayloadTag = 2;
constexpr int kFirstSlotTag = 16;  // payloads of slots have tags of their own from here on
constexpr std::size_t kHeaderBytes = offsetof(Frame, inlined);
// A payload up to this size travels in one message with its frame, into a buffer that waits for it.
// A larger one is received where it belongs, which is known when the frame is here, and costs a
// round trip more: Gloo sends nothing before the other side has asked for it.
constexpr std::size_t kEagerBytes = 512 << 10;
// Deadlines belong to those who wait for messages. Gloo must have none of its own: one that passes
// closes all its connections.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class GlooReduction final : public NativeReduction {
 public:
  explicit GlooReduction(std::unique_ptr<ProcessGroupGloo> group) : group_(std::move(group)) {}

  void all_reduce_sum(at::Tensor& tensor, double timeout_s) override {
    std::vector<at::Tensor> tensors = {tensor};
    try {
      group_->allreduce(tensors)->wait(milliseconds(timeout_s));
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kPeerLost,
                  fmt::format("Gloo's all-reduce failed: {}", first_line(error)));
    }
  }

 private:
  std::unique_ptr<ProcessGroupGloo> group_;
};

class GlooWire final : public Wire {
 public:
  GlooWire(Rendezvous meeting, const WorldPlace& place, double timeout_s)
      : meeting_(std::move(meeting)), place_(place) {
    device_ = ProcessGroupGloo::createDeviceForHostname(meeting_.address);
    group_ = make_group(meeting_.store, "world", place.process, place.num_processes, timeout_s);
    for (int process = 0; process < place.num_processes; ++process) {
      peers_.push_back(std::make_unique<Peer>());
    }
  }

  ~GlooWire() override { close(0, true); }

  std::string engine() const override { return "gloo"; }
  int process() const override { return place_.process; }
  int num_processes() const override { return place_.num_processes; }
  std::string host_of(int process) const override {
    return meeting_.hosts.at(static_cast<std::size_t>(process));
  }

  void start(WireListener& listener) override {
    listener_ = &listener;
    for (int process = 0; process < num_processes(); ++process) {
      if (process != place_.process) {
        Peer& peer = *peers_[static_cast<std::size_t>(process)];
        peer.receiver = std::thread([this, process] { receive_all(process); });
        peer.sender = std::thread([this, process] { complete_all(process); });
      }
    }
  }

  uint64_t send(int process, const Frame& frame, at::Tensor payload) override {
    Peer& peer = *peers_.at(static_cast<std::size_t>(process));
    const bool eager = frame.bytes <= kEagerBytes;
    at::Tensor message =
        at::empty({static_cast<int64_t>(kHeaderBytes + (eager ? frame.bytes : 0))}, at::kByte);
    auto* bytes = static_cast<std::byte*>(message.data_ptr());
    if (eager && frame.bytes > 0) {
      const void* from = frame.is_inline() ? frame.inlined.data() : payload.data_ptr();
      std::memcpy(bytes + kHeaderBytes, from, frame.bytes);
    }
    std::unique_lock lock(peer.mutex);
    std::memcpy(bytes, &frame, kHeaderBytes);
    std::memcpy(bytes + offsetof(Frame, sequence), &peer.num_queued, sizeof(peer.num_queued));
    const uint64_t number = peer.num_queued++;
    try {
      Pending pending;
      pending.header = send_bytes(process, std::move(message), kFrameTag);
      if (!eager) {
        pending.payload = send_bytes(process, std::move(payload), payload_tag(frame));
      }
      peer.pending.push_back(std::move(pending));
      peer.changed.notify_all();
    } catch (const std::exception& error) {
      const std::string why = first_line(error);
      lock.unlock();
      lose(process, peer, why);
    }
    return number;
  }

  // Two that send each other much at once would otherwise wait in turn: Gloo's word that a payload
  // is wanted stands in line behind the payload that goes the same way.
  void expect(int process, uint32_t slot, const at::Tensor& part) override {
    if (part.nbytes() <= kEagerBytes) {
      return;
    }
    Peer& peer = *peers_.at(static_cast<std::size_t>(process));
    std::vector<at::Tensor> tensors = {part};
    const std::lock_guard lock(peer.mutex);
    if (peer.begun.erase(slot) > 0 || peer.closing || peer.lost) {
      return;  // its frame was here first
    }
    try {
      peer.expected[slot] = {part, group_->recv(tensors, process, slot_tag(slot))};
    } catch (const std::exception&) {
      peer.expected.erase(slot);  // a lost connection, which the receiving thread tells of
    }
  }

  void forget(int process, uint32_t slot) override {
    Peer& peer = *peers_.at(static_cast<std::size_t>(process));
    const std::lock_guard lock(peer.mutex);
    peer.begun.erase(slot);
  }

  bool wait_sent(int process, uint64_t number, double timeout_s) override {
    Peer& peer = *peers_.at(static_cast<std::size_t>(process));
    std::unique_lock lock(peer.mutex);
    peer.changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                          [&] { return peer.num_sent > number || peer.lost || peer.closing; });
    return peer.num_sent > number;
  }

  std::unique_ptr<NativeReduction> native(const std::vector<int>& processes,
                                          const std::string& name, double timeout_s) override {
    int index = 0;
    while (processes.at(static_cast<std::size_t>(index)) != place_.process) {
      ++index;
    }
    return std::make_unique<GlooReduction>(
        make_group(connect_again(place_, *meeting_.store, timeout_s), name, index,
                   static_cast<int>(processes.size()), timeout_s));
  }

  void close(double timeout_s, bool failed) override {
    if (std::exchange(closed_, true)) {
      return;
    }
    const double deadline_s = monotonic_s() + timeout_s;
    if (listener_ != nullptr && !failed) {
      for_each_peer([&](int process, Peer&) {
        Frame bye;
        bye.kind = Frame::Kind::kBye;
        send(process, bye, {});
      });
      for_each_peer([&](int /*process*/, Peer& peer) {
        std::unique_lock lock(peer.mutex);
        const double left_s = std::max(0.0, deadline_s - monotonic_s());
        peer.changed.wait_for(lock, std::chrono::duration<double>(left_s), [&] {
          return peer.lost || (peer.heard_bye && peer.num_sent == peer.num_queued);
        });
      });
    }
    for_each_peer([&](int /*process*/, Peer& peer) {
      const std::lock_guard lock(peer.mutex);
      peer.closing = true;
      if (peer.receiving) {
        peer.receiving->abort();
      }
      for (Pending& each : peer.pending) {
        each.abort();
      }
      peer.completing.abort();
      peer.changed.notify_all();
    });
    for_each_peer([&](int /*process*/, Peer& peer) {
      if (peer.receiver.joinable()) {
        peer.receiver.join();
      }
      if (peer.sender.joinable()) {
        peer.sender.join();
      }
    });
    group_.reset();
  }

 private:
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;

  struct Pending {
    WorkHandle header;
    WorkHandle payload;
    void abort() const {
      for (const WorkHandle& work : {header, payload}) {
        if (work) {
          work->abort();
        }
      }
    }
  };

  struct Expected {
    at::Tensor part;
    WorkHandle work;
  };

  struct Peer {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Pending> pending;            // sent and not known to have left
    Pending completing;                     // the one that the sender's thread waits for
    WorkHandle receiving;                   // what the receiver's thread waits for
    std::map<uint32_t, Expected> expected;  // by slot: payloads asked for before their frames
    std::set<uint32_t> begun;               // slots whose frame came before anybody expected it
    uint64_t num_queued = 0;
    uint64_t num_sent = 0;
    bool heard_bye = false;
    bool lost = false;
    bool closing = false;
    std::thread receiver;
    std::thread sender;
  };

  template <typename Visit>
  void for_each_peer(const Visit& visit) {
    for (int process = 0; process < num_processes(); ++process) {
      if (process != place_.process) {
        visit(process, *peers_[static_cast<std::size_t>(process)]);
      }
    }
  }

  std::unique_ptr<ProcessGroupGloo> make_group(const c10::intrusive_ptr<c10d::TCPStore>& connection,
                                               const std::string& name, int index, int size,
                                               double timeout_s) {
    auto options = ProcessGroupGloo::Options::create(milliseconds(timeout_s));
    options->devices = {device_};
    options->threads = 1;
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, connection);
    try {
      return std::make_unique<ProcessGroupGloo>(store, index, size, options);
    } catch (const std::exception& error) {
      throw Error(
          ErrorCode::kPeerLost,
          fmt::format("process {} on {} could not connect to the others of group `{}` "
                      "within {:.0f} s: {}",
                      place_.process, meeting_.address, name, timeout_s, first_line(error)));
    }
  }

  static int slot_tag(uint32_t slot) { return kFirstSlotTag + static_cast<int>(slot); }
  static int payload_tag(const Frame& frame) {
    return frame.slot == 0 ? kPayloadTag : slot_tag(frame.slot);
  }

  // The receipt of a large payload: the one that was asked for already, else into `payload`.
  WorkHandle receipt(int process, Peer& peer, const Frame& frame, at::Tensor& payload) {
    if (frame.slot != 0) {
      const std::lock_guard lock(peer.mutex);
      const auto found = peer.expected.find(frame.slot);
      if (found != peer.expected.end()) {
        payload = found->second.part;
        WorkHandle work = std::move(found->second.work);
        peer.expected.erase(found);
        return work;
      }
      peer.begun.insert(frame.slot);
    }
    return post(process, peer, payload, payload_tag(frame));
  }

  WorkHandle send_bytes(int process, at::Tensor tensor, int tag) {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    return group_->send(tensors, process, tag);
  }

  // Asks for the next message of `tag`: at most the tensor's size. Null when closing.
  WorkHandle post(int process, Peer& peer, const at::Tensor& tensor, int tag) {
    std::vector<at::Tensor> tensors = {tensor};
    const std::lock_guard lock(peer.mutex);
    return peer.closing ? WorkHandle() : group_->recv(tensors, process, tag);
  }

  // Blocks until a message that was asked for is here. False when closing; throws when the other
  // is lost.
  bool wait_for(Peer& peer, const WorkHandle& work) {
    {
      const std::lock_guard lock(peer.mutex);
      if (peer.closing || !work) {
        return false;
      }
      peer.receiving = work;
    }
    const bool received = work->wait(kForever);
    const std::lock_guard lock(peer.mutex);
    peer.receiving.reset();
    return received && !peer.closing;
  }

  void receive_all(int process) {
    Peer& peer = *peers_[static_cast<std::size_t>(process)];
    // Two, so that one waits for the next message while the last one is looked at.
    std::array<at::Tensor, 2> buffers;
    std::array<WorkHandle, 2> works;
    try {
      for (std::size_t i = 0; i < 2; ++i) {
        buffers[i] = at::empty({static_cast<int64_t>(kHeaderBytes + kEagerBytes)}, at::kByte);
        works[i] = post(process, peer, buffers[i], kFrameTag);
      }
      for (uint64_t next = 0; wait_for(peer, works[next % 2]); ++next) {
        const auto* bytes = static_cast<const std::byte*>(buffers[next % 2].data_ptr());
        if (!take(process, peer, bytes, next)) {
          return;
        }
        works[next % 2] = post(process, peer, buffers[next % 2], kFrameTag);
      }
    } catch (const std::exception& error) {
      lose(process, peer, first_line(error));
    }
  }

  // One message, the `number`th. False after the last one.
  bool take(int process, Peer& peer, const std::byte* bytes, uint64_t number) {
    Frame frame;
    std::memcpy(static_cast<void*>(&frame), bytes, kHeaderBytes);
    MILLRACE_CHECK(
        frame.magic == Frame::kMagic && frame.sequence == number,
        fmt::format("frame {} of process {}, expected {}", frame.sequence, process, number));
    if (frame.kind == Frame::Kind::kBye) {
      const std::lock_guard lock(peer.mutex);
      peer.heard_bye = true;
      peer.changed.notify_all();
      return false;
    }
    at::Tensor payload;
    if (frame.is_inline()) {
      std::memcpy(frame.inlined.data(), bytes + kHeaderBytes, frame.bytes);
    } else {
      payload = listener_->landing(frame);
      if (frame.bytes <= kEagerBytes) {
        std::memcpy(payload.data_ptr(), bytes + kHeaderBytes, frame.bytes);
      } else if (!wait_for(peer, receipt(process, peer, frame, payload))) {
        return false;
      }
    }
    listener_->on_frame(process, frame, std::move(payload));
    return true;
  }

  void complete_all(int process) {
    Peer& peer = *peers_[static_cast<std::size_t>(process)];
    std::unique_lock lock(peer.mutex);
    while (true) {
      peer.changed.wait(lock, [&] { return !peer.pending.empty() || peer.closing || peer.lost; });
      if (peer.closing || peer.lost) {
        peer.pending.clear();
        return;
      }
      peer.completing = std::move(peer.pending.front());
      peer.pending.pop_front();
      const Pending current = peer.completing;
      lock.unlock();
      bool done = false;
      try {
        done = (!current.header || current.header->wait(kForever)) &&
               (!current.payload || current.payload->wait(kForever));
      } catch (const std::exception& error) {
        lose(process, peer, first_line(error));
      }
      lock.lock();
      peer.completing = {};
      if (done) {
        ++peer.num_sent;
        peer.changed.notify_all();
      }
    }
  }

  void lose(int process, Peer& peer, const std::string& why) {
    bool expected = false;
    {
      const std::lock_guard lock(peer.mutex);
      if (peer.closing || std::exchange(peer.lost, true)) {
        return;
      }
      expected = peer.heard_bye;
      peer.changed.notify_all();
    }
    if (!expected) {
      listener_->on_lost(process, why);
    }
  }

  Rendezvous meeting_;
  const WorldPlace place_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::unique_ptr<ProcessGroupGloo> group_;
  std::vector<std::unique_ptr<Peer>> peers_;
  WireListener* listener_ = nullptr;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Wire> join_gloo(const WorldPlace& place, const PortExchange& ports,
                                double timeout_s) {
  const double deadline_s = monotonic_s() + timeout_s;
  Rendezvous meeting = rendezvous(place, ports, timeout_s);
  return std::make_unique<GlooWire>(std::move(meeting), place,
                                    std::max(1.0, deadline_s - monotonic_s()));
}

}  // namespace millrace
