#include "millrace/comm/shaped/shaped.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/transport/pause.h"

namespace millrace {
namespace {

// The message that says when another one arrives has that one's tag with this bit set: kinds of
// actions and of engines are below it.
constexpr uint8_t kStamp = 0x80;

MessageTag stamp_of(MessageTag tag) {
  MILLRACE_CHECK(tag.kind < kStamp, "message kind " + std::to_string(tag.kind));
  tag.kind |= kStamp;
  return tag;
}

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
    Transfer transfer = engine_->all_reduce_sum(tensor);
    const double bytes =
        network_.reduction_bytes ? network_.reduction_bytes(stage_, tensor) : own_bytes(tensor);
    pause_until(last_asked_s + network_.cluster.all_reduce_s(ranks(), bytes) * network_.time_scale,
                abort_, network_.spin_s);
    transfer.wait_s = last_asked_s - asked_s;
    if (own_bytes(tensor) > 0) {
      transfer.bytes =
          static_cast<int64_t>(static_cast<double>(transfer.bytes) * (bytes / own_bytes(tensor)));
    }
    return transfer;
  }

 private:
  // The latest of all members' times: each puts its own beside zeros, and sums of those are exact.
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

class ShapedCommunicator final : public Communicator {
 public:
  ShapedCommunicator(std::unique_ptr<Communicator> engine, const ShapedNetwork& network,
                     AbortFlag& abort)
      : engine_(std::move(engine)), network_(network), abort_(abort) {}

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }

  Transfer send(int to, const MessageTag& tag, at::Tensor tensor) override {
    const double bytes = bytes_of(rank(), to, tag, tensor);
    if (to != rank()) {
      // Before the message, so that it is there when the message is.
      at::Tensor arrival = at::empty({1}, at::kDouble);
      *arrival.data_ptr<double>() = arrival_s(to, bytes);
      engine_->send(to, stamp_of(tag), std::move(arrival));
    }
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
    // The message first: what is missing or unlike is told of it and not of its stamp.
    at::Tensor tensor = engine_->receive(from, tag, expected, &moved);
    if (from != rank()) {
      const double start_s = monotonic_s();
      const at::Tensor stamp = engine_->receive(from, stamp_of(tag), nullptr, nullptr);
      pause_until(*stamp.data_ptr<double>(), abort_, network_.spin_s);
      moved.wait_s += monotonic_s() - start_s;
    }
    moved.bytes = static_cast<int64_t>(bytes_of(from, rank(), tag, tensor));
    if (transfer != nullptr) {
      *transfer = moved;
    }
    return tensor;
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

  // Takes the link to `to` for a message that is sent now.
  double arrival_s(int to, double bytes) {
    const Cluster& cluster = network_.cluster;
    double& free_s = free_s_[to];
    free_s = std::max(free_s, monotonic_s()) +
             bytes / cluster.bandwidth_between(rank(), to) * network_.time_scale;
    return free_s + cluster.latency_between(rank(), to) * network_.time_scale;
  }

  std::unique_ptr<Communicator> engine_;
  const ShapedNetwork& network_;
  AbortFlag& abort_;
  std::map<int, double> free_s_;  // by receiver: when the link there has carried all it was given
};

}  // namespace

std::unique_ptr<Communicator> shape_links(std::unique_ptr<Communicator> engine,
                                          const ShapedNetwork& network, AbortFlag& abort) {
  return std::make_unique<ShapedCommunicator>(std::move(engine), network, abort);
}

}  // namespace millrace
