#include "millrace/comm/shaped/shaped.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/comm/shaped/inbox.h"
#include "millrace/transport/pause.h"

namespace millrace {
namespace {

double own_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0;
}

class ShapedGroup final : public Group {
 public:
  ShapedGroup(std::unique_ptr<Group> engine, int stage, const ShapedNetwork& network,
              const AbortFlag& abort)
      : engine_(std::move(engine)), stage_(stage), network_(network), abort_(abort) {}

  const std::vector<int>& ranks() const override { return engine_->ranks(); }
  int member() const override { return engine_->member(); }
  Transfer barrier() override { return engine_->barrier(); }

  Transfer all_reduce_sum(at::Tensor& tensor) override {
    const double asked_s = monotonic_s();
    const double last_asked_s = latest(asked_s);
    const double bytes =
        network_.reduction_bytes ? network_.reduction_bytes(stage_, tensor) : own_bytes(tensor);
    // The first member gives it to the links; all hear of it.
    const double scale = network_.time_scale;
    const double end_s = latest(
        member() == 0 ? network_.links->reduce(ranks(), last_asked_s / scale, bytes) * scale : 0);
    Transfer transfer = engine_->all_reduce_sum(tensor);
    pause_until(end_s, abort_, network_.spin_s);
    transfer.wait_s = last_asked_s - asked_s;
    if (own_bytes(tensor) > 0) {
      transfer.bytes =
          static_cast<int64_t>(static_cast<double>(transfer.bytes) * (bytes / own_bytes(tensor)));
    }
    return transfer;
  }

 private:
  // The latest of all members' times (>= 0): each puts its own beside zeros, and sums of those are
  // exact.
  double latest(double own_s) {
    at::Tensor times = at::zeros({static_cast<int64_t>(ranks().size())}, at::kDouble);
    double* values = times.data_ptr<double>();
    values[member()] = own_s;
    engine_->all_reduce_sum(times);
    return *std::max_element(values, values + ranks().size());
  }

  std::unique_ptr<Group> engine_;
  int stage_;
  const ShapedNetwork& network_;
  const AbortFlag& abort_;
};

// What the communicators of one rank share, whatever their lanes.
class RankLinks {
 public:
  Inbox& inbox(uint16_t lane) {
    const std::lock_guard lock(mutex_);
    return inboxes_[lane];
  }

 private:
  std::mutex mutex_;
  std::map<uint16_t, Inbox> inboxes_;
};

class ShapedCommunicator final : public Communicator {
 public:
  ShapedCommunicator(std::unique_ptr<Communicator> engine, const ShapedNetwork& network,
                     AbortFlag& abort, std::shared_ptr<RankLinks> own)
      : engine_(std::move(engine)), network_(network), abort_(abort), own_(std::move(own)) {}

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }

  Transfer send(int to, const MessageTag& tag, at::Tensor tensor) override {
    const double bytes = bytes_of(rank(), to, tag, tensor);
    // Before the message, so that it is there when the message is.
    at::Tensor arrival = at::empty({1}, at::kDouble);
    *arrival.data_ptr<double>() =
        network_.links->carry(rank(), to, monotonic_s() / network_.time_scale, bytes) *
        network_.time_scale;
    engine_->send(to, stamp_of(tag), std::move(arrival));
    Transfer transfer = engine_->send(to, tag, std::move(tensor));
    transfer.bytes = static_cast<int64_t>(bytes);
    return transfer;
  }

  void expect(int from, const MessageTag& tag, const Fingerprint& fingerprint) override {
    engine_->expect(from, tag, fingerprint);
  }

  at::Tensor receive(int from, const MessageTag& tag, const Fingerprint* expected,
                     Transfer* transfer) override {
    Transfer moved;
    double arrival_s = 0;
    at::Tensor tensor;
    Inbox& inbox = own_->inbox(tag.lane);
    if (std::optional<Inbox::Message> here = inbox.take(from, tag)) {
      tensor = std::move(here->content.tensor);
      arrival_s = here->arrival_s;
      check_alike(from, tag, expected, tensor);
    } else {
      // The message first: what is missing or unlike is told of it and not of its stamp.
      tensor = engine_->receive(from, tag, expected, &moved);
      arrival_s = stamp(inbox, from, tag);
    }
    const double start_s = monotonic_s();
    pause_until(arrival_s, abort_, network_.spin_s);
    moved.wait_s += monotonic_s() - start_s;
    moved.bytes = static_cast<int64_t>(bytes_of(from, rank(), tag, tensor));
    if (transfer != nullptr) {
      *transfer = moved;
    }
    return tensor;
  }

  bool receive_any(uint16_t lane, double wait_s, Arrived& arrived, Transfer* transfer) override {
    const double start_s = monotonic_s();
    const double deadline_s =
        wait_s < 0 ? std::numeric_limits<double>::infinity() : start_s + wait_s;
    Inbox& inbox = own_->inbox(lane);
    const bool found = await_arrival(inbox, lane, deadline_s);
    if (found) {
      arrived = inbox.take_earliest();
    }
    if (transfer != nullptr) {
      transfer->wait_s += wait_s == 0 ? 0 : monotonic_s() - start_s;
      transfer->bytes +=
          found ? static_cast<int64_t>(bytes_of(arrived.from, rank(), arrived.tag, arrived.tensor))
                : 0;
    }
    return found;
  }

  std::unique_ptr<Communicator> on_lane(uint16_t lane) override {
    return std::make_unique<ShapedCommunicator>(engine_->on_lane(lane), network_, abort_, own_);
  }

  std::unique_ptr<Group> group(const std::vector<int>& ranks, int stage) override {
    return std::make_unique<ShapedGroup>(engine_->group(ranks, stage), stage, network_, abort_);
  }

  void abort(const Error& cause) override {
    abort_.raise(cause);
    engine_->abort(cause);
  }

 private:
  double bytes_of(int from, int to, const MessageTag& tag, const at::Tensor& tensor) const {
    return network_.message_bytes ? network_.message_bytes(from, to, tag, tensor)
                                  : own_bytes(tensor);
  }

  void check_alike(int from, const MessageTag& tag, const Fingerprint* expected,
                   const at::Tensor& tensor) const {
    const Fingerprint found = fingerprint_of(tensor);
    if (expected != nullptr && !(*expected == found)) {
      internal::throw_unlike_message(rank(), {from, tag}, *expected, found);
    }
  }

  // Of the message that was taken from the engine.
  double stamp(Inbox& inbox, int from, const MessageTag& tag) {
    if (const std::optional<double> here = inbox.take_stamp(from, tag)) {
      return *here;
    }
    return *engine_->receive(from, stamp_of(tag), nullptr, nullptr).data_ptr<double>();
  }

  // Waits for the time of the first arrival; false when there is none until the deadline (infinite:
  // the engine's, while nothing is under way).
  bool await_arrival(Inbox& inbox, uint16_t lane, double deadline_s) {
    // What waits for messages wakes later than a pause does; so long before an arrival that no
    // longer matters. A message that comes during the pause is found after it.
    constexpr double kPauseS = 200e-6;
    while (true) {
      Arrived each;
      while (engine_->receive_any(lane, 0, each, nullptr)) {
        inbox.put(std::move(each));
      }
      const double now_s = monotonic_s();
      const Inbox::Message* const first = inbox.earliest();
      if (first != nullptr && first->arrival_s <= now_s) {
        return true;
      }
      if (now_s >= deadline_s) {
        return false;
      }
      const bool arrives = first != nullptr && first->arrival_s <= deadline_s;
      if (arrives && first->arrival_s - now_s <= kPauseS) {
        pause_until(first->arrival_s, abort_, network_.spin_s);
        continue;
      }
      const double until_s = arrives ? first->arrival_s - kPauseS : deadline_s;
      const bool unlimited = until_s == std::numeric_limits<double>::infinity();
      if (engine_->receive_any(lane, unlimited ? -1 : until_s - now_s, each, nullptr)) {
        inbox.put(std::move(each));
      }
    }
  }

  std::unique_ptr<Communicator> engine_;
  const ShapedNetwork& network_;
  AbortFlag& abort_;
  const std::shared_ptr<RankLinks> own_;
};

}  // namespace

double SharedLinks::carry(int from, int to, double now_s, double bytes) {
  const std::lock_guard lock(mutex_);
  // Another thread may have been faster; by no more than the time from the clock to here.
  constexpr double kWaitsForLockS = 1;
  calendar_.forget_before(now_s - kWaitsForLockS);
  return calendar_.carry(from, to, now_s, bytes);
}

double SharedLinks::reduce(const std::vector<int>& devices, double at_s, double bytes) {
  const std::lock_guard lock(mutex_);
  return calendar_.reduce(devices, at_s, bytes,
                          calendar_.map().cluster().all_reduce_s(devices, bytes));
}

std::unique_ptr<Communicator> shape_links(std::unique_ptr<Communicator> engine,
                                          const ShapedNetwork& network, AbortFlag& abort) {
  return std::make_unique<ShapedCommunicator>(std::move(engine), network, abort,
                                              std::make_shared<RankLinks>());
}

}  // namespace millrace
