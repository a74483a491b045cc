#include "millrace/comm/mpi/mpi_wire.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/comm/mpi/reduction.h"
#include "millrace/comm/mpi/session.h"

namespace millrace {
namespace {

constexpr int kFrameTag = 1;
constexpr int kPayloadTag = 2;
// MPI counts in int.
constexpr uint64_t kPieceBytes = uint64_t{1} << 30;
// Between hosts, so small that TCP carries each piece at once. A larger one waits for the other
// side's word that it is wanted, which stands in line behind what that side sends: two that send
// each other much would do so in turn.
constexpr uint64_t kPieceBytesBetweenHosts = 60 << 10;
// In Frame::tag_kind of a bye: the process goes without having ended well.
constexpr uint8_t kLeft = 1;

at::Tensor empty_bytes(std::size_t count) {
  return at::empty({static_cast<int64_t>(count)}, at::kByte);
}

std::byte* bytes_of(const at::Tensor& tensor, uint64_t offset = 0) {
  return static_cast<std::byte*>(tensor.data_ptr()) + offset;
}

class MpiWire final : public Wire {
 public:
  MpiWire(MpiSession session, const WorldPlace& place)
      : session_(std::move(session)),
        place_(place),
        peers_(static_cast<std::size_t>(place.num_processes)),
        incoming_(static_cast<std::size_t>(place.num_processes)),
        requests_(static_cast<std::size_t>(place.num_processes), MPI_REQUEST_NULL) {}

  ~MpiWire() override { close(0, true); }

  std::string engine() const override { return "mpi"; }
  int process() const override { return place_.process; }
  int num_processes() const override { return place_.num_processes; }
  std::string host_of(int process) const override {
    return session_.hosts.at(static_cast<std::size_t>(process));
  }

  void start(WireListener& listener) override {
    listener_ = &listener;
    for (int process = 0; process < num_processes(); ++process) {
      if (process != place_.process) {
        incoming(process).header = empty_bytes(Frame::kBytes);
        receive_header(process);
      }
    }
    thread_ = std::thread([this] { progress(); });
  }

  uint64_t send(int process, const Frame& frame, at::Tensor payload) override {
    at::Tensor header = empty_bytes(Frame::kBytes);
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(process));
    Frame numbered = frame;
    numbered.sequence = peer.num_queued;
    std::memcpy(header.data_ptr(), &numbered, sizeof(Frame));
    peer.said_bye = peer.said_bye || frame.kind == Frame::Kind::kBye;
    failed_ = failed_ || frame.kind == Frame::Kind::kAbort;
    if (!peer.lost && !stopping_) {
      peer.unsent.push_back(0);
      post(process, header, 0, static_cast<int>(Frame::kBytes), kFrameTag);
      for (uint64_t offset = 0; !frame.is_inline() && offset < frame.bytes;) {
        const int bytes = piece_bytes(process, frame.bytes, offset);
        post(process, payload, offset, bytes, kPayloadTag);
        offset += static_cast<uint64_t>(bytes);
      }
    }
    if (sleeping_) {
      wake_.notify_one();
    }
    return peer.num_queued++;
  }

  bool wait_sent(int process, uint64_t number, double timeout_s) override {
    std::unique_lock lock(mutex_);
    const Peer& peer = peers_.at(static_cast<std::size_t>(process));
    changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                      [&] { return peer.num_sent > number || peer.lost || stopping_; });
    return peer.num_sent > number;
  }

  std::unique_ptr<NativeReduction> native(const std::vector<int>& processes,
                                          const std::string& name, double timeout_s) override {
    return make_mpi_reduction(session_.comm, failed_, processes, name, timeout_s);
  }

  void close(double timeout_s, bool failed) override {
    if (std::exchange(closed_, true) || !thread_.joinable()) {
      return;
    }
    constexpr double kLastWordsS = 0.1;
    Frame bye;
    bye.kind = Frame::Kind::kBye;
    bye.tag_kind = failed ? kLeft : 0;
    for (int process = 0; process < num_processes(); ++process) {
      if (process != place_.process && !said_bye(process)) {
        send(process, bye, {});
      }
    }
    bool well = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(failed ? kLastWordsS : timeout_s), [&] {
        return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
          return peer.lost || (peer.all_sent() && (failed || peer.ended_well()));
        });
      });
      well = !failed && !failed_ && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return !peer.lost && peer.all_sent() && peer.ended_well();
      });
      failed_ = true;  // for those who wait for a reduction still
      stopping_ = true;
      wake_.notify_one();
      changed_.notify_all();
    }
    thread_.join();
    if (well) {
      // Groups' communicators go with it.
      MPI_Comm_free(&session_.comm);
      MPI_Finalize();
    } else {
      abandon();
    }
  }

 private:
  // What is known of another process; with mutex_.
  struct Peer {
    uint64_t num_queued = 0;
    uint64_t num_sent = 0;
    std::deque<int> unsent;  // by frame from num_sent on: its requests under way
    bool said_bye = false;
    bool heard_bye = false;
    bool lost = false;

    bool all_sent() const { return num_sent == num_queued; }
    // Also true of this process itself, to which nothing is sent.
    bool ended_well() const { return heard_bye || num_queued == 0; }
  };
  // What is received from another process; the thread's own.
  struct Incoming {
    at::Tensor header;
    Frame frame;
    at::Tensor payload;  // defined: `received` bytes of it are here
    uint64_t received = 0;
    uint64_t num_frames = 0;
  };
  struct Outgoing {
    MPI_Request request = MPI_REQUEST_NULL;
    at::Tensor buffer;
    int process = 0;
    uint64_t number = 0;
    uint64_t bytes = 0;
  };
  bool is_near(int process) const { return host_of(process) == host_of(place_.process); }
  int piece_bytes(int process, uint64_t bytes, uint64_t offset) const {
    return static_cast<int>(
        std::min(is_near(process) ? kPieceBytes : kPieceBytesBetweenHosts, bytes - offset));
  }
  Incoming& incoming(int process) { return incoming_[static_cast<std::size_t>(process)]; }
  bool said_bye(int process) {
    const std::lock_guard lock(mutex_);
    return peers_[static_cast<std::size_t>(process)].said_bye;
  }

  // With mutex_, which keeps a frame and its payload together.
  void post(int process, const at::Tensor& buffer, uint64_t offset, int bytes, int tag) {
    Peer& peer = peers_[static_cast<std::size_t>(process)];
    Outgoing outgoing{MPI_REQUEST_NULL, buffer, process, peer.num_queued,
                      static_cast<uint64_t>(bytes)};
    const int error = MPI_Isend(bytes_of(buffer, offset), bytes, MPI_BYTE, process, tag,
                                session_.comm, &outgoing.request);
    if (error != MPI_SUCCESS) {
      lose(process, "MPI_Isend failed: " + mpi_error_text(error));
      return;
    }
    ++peer.unsent.back();
    posted_.push_back(std::move(outgoing));
  }

  // With mutex_. The thread tells the listener.
  void lose(int process, const std::string& why) {
    Peer& peer = peers_[static_cast<std::size_t>(process)];
    if (!std::exchange(peer.lost, true) && !peer.heard_bye) {
      failed_ = true;
      lost_.emplace_back(process, why);
    }
    changed_.notify_all();
  }

  void lose_from_thread(int process, const std::string& why) {
    const std::lock_guard lock(mutex_);
    lose(process, why);
  }

  void progress() {
    // Else every pause is 50 us longer than asked for.
    ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    double last_event_s = monotonic_s();
    std::vector<std::pair<int, std::string>> lost;
    while (take_orders(lost, last_event_s)) {
      for (const auto& [process, why] : std::exchange(lost, {})) {
        listener_->on_lost(process, why);
      }
      if (test()) {
        last_event_s = monotonic_s();
      } else {
        rest(last_event_s);
      }
    }
  }

  // False: the end.
  bool take_orders(std::vector<std::pair<int, std::string>>& lost, double& last_event_s) {
    const std::lock_guard lock(mutex_);
    for (Outgoing& each : posted_) {
      last_event_s = monotonic_s();
      expect_traffic(each.process, each.bytes);
      requests_.push_back(each.request);
      outgoing_.push_back(std::move(each));
    }
    posted_.clear();
    std::swap(lost, lost_);
    return !stopping_;
  }

  // A large message makes progress that no request shows, and through shared memory it does so only
  // while this thread looks. A network goes on by itself.
  void expect_traffic(int process, uint64_t bytes) {
    constexpr double kSlowBytesPerS = 2e8;
    constexpr uint64_t kSmallBytes = 4096;
    if (bytes > kSmallBytes && is_near(process)) {
      busy_until_s_ =
          std::max(busy_until_s_, monotonic_s() + static_cast<double>(bytes) / kSlowBytesPerS);
    }
  }

  // Whether anything had happened.
  bool test() {
    const int count = static_cast<int>(requests_.size());
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int num_done = 0;
    const int error =
        MPI_Testsome(count, requests_.data(), &num_done, done_.data(), statuses_.data());
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
      for (int process = 0; process < num_processes(); ++process) {
        if (process != place_.process) {
          lose_from_thread(process, "MPI_Testsome failed: " + mpi_error_text(error));
        }
      }
      return false;
    }
    if (num_done == MPI_UNDEFINED) {
      return false;
    }
    for (int i = 0; i < num_done; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const int result = error == MPI_SUCCESS ? MPI_SUCCESS : statuses_[k].MPI_ERROR;
      if (done_[k] < num_processes()) {
        received(done_[k], result);
      } else {
        sent(outgoing_[static_cast<std::size_t>(done_[k] - num_processes())], result);
      }
    }
    forget_sent();
    return num_done > 0;
  }

  void sent(const Outgoing& each, int error) {
    const std::lock_guard lock(mutex_);
    if (error != MPI_SUCCESS) {
      lose(each.process, "a message did not leave: " + mpi_error_text(error));
      return;
    }
    Peer& peer = peers_[static_cast<std::size_t>(each.process)];
    --peer.unsent[each.number - peer.num_sent];
    while (!peer.unsent.empty() && peer.unsent.front() == 0) {
      peer.unsent.pop_front();
      ++peer.num_sent;
    }
    changed_.notify_all();
  }

  void forget_sent() {
    const auto first = static_cast<std::size_t>(num_processes());
    for (std::size_t i = outgoing_.size(); i-- > 0;) {
      if (requests_[first + i] == MPI_REQUEST_NULL) {
        requests_[first + i] = requests_.back();
        requests_.pop_back();
        std::swap(outgoing_[i], outgoing_.back());
        outgoing_.pop_back();
      }
    }
  }

  void receive(int process, std::byte* buffer, int bytes, int tag) {
    const int error = MPI_Irecv(buffer, bytes, MPI_BYTE, process, tag, session_.comm,
                                &requests_[static_cast<std::size_t>(process)]);
    if (error != MPI_SUCCESS) {
      lose_from_thread(process, "MPI_Irecv failed: " + mpi_error_text(error));
    }
  }
  void receive_header(int process) {
    receive(process, bytes_of(incoming(process).header), static_cast<int>(Frame::kBytes),
            kFrameTag);
  }
  void receive_piece(int process) {
    const Incoming& in = incoming(process);
    receive(process, bytes_of(in.payload, in.received),
            piece_bytes(process, in.frame.bytes, in.received), kPayloadTag);
  }

  void received(int process, int error) {
    if (error != MPI_SUCCESS) {
      lose_from_thread(process, mpi_error_text(error));
      return;
    }
    try {
      Incoming& in = incoming(process);
      if (!in.payload.defined()) {
        take_header(process, in);
        return;
      }
      in.received += static_cast<uint64_t>(piece_bytes(process, in.frame.bytes, in.received));
      if (in.received < in.frame.bytes) {
        receive_piece(process);
        return;
      }
      receive_header(process);
      listener_->on_frame(process, in.frame, std::exchange(in.payload, {}));
    } catch (const std::exception& failure) {
      lose_from_thread(process, failure.what());
    }
  }

  void take_header(int process, Incoming& in) {
    std::memcpy(&in.frame, in.header.data_ptr(), sizeof(Frame));
    const Frame& frame = in.frame;
    MILLRACE_CHECK(
        frame.magic == Frame::kMagic && frame.sequence == in.num_frames,
        fmt::format("frame {} of process {}, expected {}", frame.sequence, process, in.num_frames));
    ++in.num_frames;
    if (frame.kind == Frame::Kind::kBye) {
      const std::lock_guard lock(mutex_);
      if (frame.tag_kind == kLeft) {
        lose(process, "it left its world");
      }
      peers_[static_cast<std::size_t>(process)].heard_bye = true;
      changed_.notify_all();
      return;
    }
    if (frame.kind == Frame::Kind::kAbort) {
      failed_ = true;
    }
    if (frame.is_inline()) {
      receive_header(process);
      listener_->on_frame(process, frame, {});
      return;
    }
    in.payload = listener_->landing(frame);
    in.received = 0;
    expect_traffic(process, frame.bytes);
    receive_piece(process);
  }

  void rest(double last_event_s) {
    const double now_s = monotonic_s();
    const double pause_s = now_s < busy_until_s_ ? 0 : mpi_pause_s(now_s - last_event_s);
    if (pause_s == 0) {
      ::sched_yield();
      return;
    }
    std::unique_lock lock(mutex_);
    if (posted_.empty() && lost_.empty() && !stopping_) {
      sleeping_ = true;
      wake_.wait_for(lock, std::chrono::duration<double>(pause_s));
      sleeping_ = false;
    }
  }

  // Without MPI's end, which could wait for who is lost, memory that it was given stays its own: as
  // long as the process.
  void abandon() {
    const std::lock_guard lock(mutex_);
    std::move(posted_.begin(), posted_.end(), std::back_inserter(outgoing_));
    std::vector<at::Tensor> buffers;
    for (Outgoing& each : outgoing_) {
      buffers.push_back(std::move(each.buffer));
    }
    for (Incoming& each : incoming_) {
      buffers.push_back(std::move(each.header));
      buffers.push_back(std::move(each.payload));
    }
    keep_for_mpi(std::move(buffers));
  }

  MpiSession session_;
  const WorldPlace place_;
  WireListener* listener_ = nullptr;
  std::thread thread_;
  bool closed_ = false;
  std::atomic<bool> failed_{false};  // here or elsewhere: nobody waits for a reduction any more

  std::mutex mutex_;
  std::condition_variable wake_;     // the thread
  std::condition_variable changed_;  // those who wait for peers
  bool sleeping_ = false;
  bool stopping_ = false;
  std::vector<Peer> peers_;
  std::vector<Outgoing> posted_;                   // since the thread looked last
  std::vector<std::pair<int, std::string>> lost_;  // to tell the listener

  // The thread's own.
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;
  std::vector<MPI_Request> requests_;  // one receive a process, then those of outgoing_
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  double busy_until_s_ = 0;
};

}  // namespace

std::unique_ptr<Wire> join_mpi(const WorldPlace& place, double timeout_s) {
  return std::make_unique<MpiWire>(start_mpi(place, timeout_s), place);
}

}  // namespace millrace
