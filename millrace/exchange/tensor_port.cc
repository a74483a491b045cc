#include "millrace/exchange/tensor_port.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"

namespace millrace {
namespace {

// Elements behind a vector's own that hold a message's numbers, in float32 and float64 alike.
constexpr int64_t kTail = 8;
static_assert(sizeof(Numbers) <= kTail * sizeof(float));

}  // namespace

TensorPort::TensorPort(PortPlace place, Communicator& communicator)
    : place_(std::move(place)), communicator_(communicator) {
  MILLRACE_CHECK(place_.dtype == at::kFloat || place_.dtype == at::kDouble,
                 "rules take float32 or float64");
  meetings_.push_back({place_.replicas, nullptr, nullptr});
  if (place_.member != kServer) {
    meetings_.back().group = communicator_.group(place_.replicas, place_.stage);
  }
}

int64_t TensorPort::vector_elements(const at::Tensor& message) { return message.numel() - kTail; }

void TensorPort::bind(const at::Tensor& gradient, const at::Tensor& current,
                      const at::Tensor& target) {
  set(gradient_, gradient);
  set(current_, current);
  set(target_, target);
}

void TensorPort::set(TensorVector& vector, const at::Tensor& tensor) {
  MILLRACE_CHECK(!tensor.defined() || (tensor.dim() == 1 && tensor.is_contiguous() &&
                                       tensor.scalar_type() == place_.dtype),
                 "a rule's vector is flat and of the stage's dtype");
  vector.tensor = tensor;
  vector.data = tensor.defined() ? tensor.data_ptr() : nullptr;
  vector.size = tensor.defined() ? tensor.numel() - (vector.has_tail ? kTail : 0) : 0;
  vector.is_double = place_.dtype == at::kDouble;
}

at::Tensor TensorPort::new_memory(int64_t size) const {
  return at::empty({size + kTail}, place_.dtype);
}

Vector& TensorPort::gradient() {
  MILLRACE_CHECK(gradient_.tensor.defined(), "a rule asks for the gradient where there is none");
  return gradient_;
}

Vector& TensorPort::current() {
  MILLRACE_CHECK(current_.tensor.defined(), "a rule asks for weights where there are none");
  return current_;
}

Vector& TensorPort::weights() {
  MILLRACE_CHECK(target_.tensor.defined(), "a rule asks for weights where there are none");
  return target_;
}

Vector& TensorPort::make_vector(int64_t size) {
  MILLRACE_CHECK(size >= 0, fmt::format("a vector of {} elements", size));
  auto vector = std::make_unique<TensorVector>();
  vector->has_tail = true;
  set(*vector, at::zeros({size + kTail}, place_.dtype));
  vectors_.push_back(std::move(vector));
  return *vectors_.back();
}

at::Tensor TensorPort::elements(Vector& vector) const {
  TensorVector& holder = own(vector);
  return holder.has_tail ? holder.tensor.narrow(0, 0, holder.size) : holder.tensor;
}

// --- emulated work, as the simulator counts it

void TensorPort::add_work(double updates) {
  if (work_ == nullptr) {
    return;
  }
  if (work_updates_ == 0) {
    work_began_s_ = monotonic_s();
  }
  work_updates_ += updates;
}

void TensorPort::charge(int64_t elements) {
  if (place_.elements > 0) {
    add_work(static_cast<double>(elements) /
             (kPassesOfAnUpdate * static_cast<double>(place_.elements)));
  }
}

void TensorPort::finish_work() {
  if (work_updates_ > 0) {
    work_(work_began_s_, std::exchange(work_updates_, 0));
  }
}

void TensorPort::apply(Vector& gradient, double samples) {
  MILLRACE_CHECK(optimizer_ != nullptr, "a rule updates outside of an update");
  at::Tensor sums = elements(gradient);
  weights();
  add_work(1);
  optimizer_(current_.tensor, target_.tensor, sums, samples, false);
}

void TensorPort::apply_to(Vector& delta, Vector& gradient, double samples) {
  MILLRACE_CHECK(optimizer_ != nullptr, "a rule updates outside of an update");
  at::Tensor sums = elements(gradient);
  at::Tensor into = elements(delta);
  add_work(1);
  optimizer_(current_.tensor, into, sums, samples, true);
}

int TensorPort::rank_of(int member) const {
  return place_.replicas.at(static_cast<std::size_t>(member == kServer ? 0 : member));
}

// `to` and `from` as the rule numbers them.
MessageTag TensorPort::tag(int to, int from, int kind) const {
  MILLRACE_CHECK(0 <= kind && kind < 16, fmt::format("message kind {}", kind));
  return {.kind = kRuleMessage,
          .stage = place_.stage,
          .microbatch = from == kServer ? 1 : 0,
          .tensor = kind,
          .to_stage = place_.stage,
          .lane = rule_lane(place_.stage, to == kServer ? RuleLane::kServer : RuleLane::kReplica)};
}

void TensorPort::post(int to, int kind, at::Tensor message, int64_t size, const Numbers& numbers) {
  finish_work();
  std::memcpy(
      static_cast<char*>(message.data_ptr()) + size * static_cast<int64_t>(message.element_size()),
      numbers.data(), sizeof(numbers));
  transfer_.bytes +=
      communicator_.send(rank_of(to), tag(to, place_.member, kind), std::move(message)).bytes;
}

void TensorPort::send(int to, int kind, const Vector* vector, const Numbers& numbers) {
  const int64_t size = vector == nullptr ? 0 : vector->size;
  at::Tensor message = new_memory(size);
  if (size > 0) {
    std::memcpy(message.data_ptr(), vector->data, static_cast<std::size_t>(vector->bytes()));
  }
  post(to, kind, std::move(message), size, numbers);
}

void TensorPort::give(int to, int kind, Vector& vector, const Numbers& numbers) {
  TensorVector& holder = own(vector);
  MILLRACE_CHECK(holder.has_tail, "only vectors of the rule's own can be given away");
  at::Tensor message = std::exchange(holder.tensor, at::Tensor());
  set(holder, new_memory(holder.size));
  const int64_t size = holder.size;
  post(to, kind, std::move(message), size, numbers);
}

void TensorPort::adopt(at::Tensor message, Vector* into) {
  MILLRACE_CHECK(
      message.defined() && message.scalar_type() == place_.dtype && message.numel() >= kTail,
      "a message of an exchange rule has another form");
  const int64_t size = message.numel() - kTail;
  std::memcpy(taken_.numbers.data(),
              static_cast<const char*>(message.data_ptr()) +
                  size * static_cast<int64_t>(message.element_size()),
              sizeof(Numbers));
  MILLRACE_CHECK(size == 0 || into != nullptr, "a message brings a vector that nobody wants");
  if (size > 0) {
    TensorVector& holder = own(*into);
    MILLRACE_CHECK(holder.has_tail, "messages are received into vectors of the rule's own");
    set(holder, message);
  }
}

bool TensorPort::ready() {
  finish_work();
  taken_ = Message{};
  Transfer transfer;
  switch (want_.kind) {
    case Want::kFrom: {
      taken_.from = want_.from;
      taken_.kind = want_.message_kind;
      adopt(communicator_.receive(rank_of(want_.from),
                                  tag(place_.member, want_.from, want_.message_kind), nullptr,
                                  &transfer),
            want_.vector);
      break;
    }
    case Want::kAny:
    case Want::kPoll: {
      const auto lane = rule_lane(
          place_.stage, place_.member == kServer ? RuleLane::kServer : RuleLane::kReplica);
      Arrived arrived;
      taken_.here =
          communicator_.receive_any(lane, want_.kind == Want::kAny ? -1 : 0, arrived, &transfer);
      if (taken_.here) {
        const auto found = std::find(place_.replicas.begin(), place_.replicas.end(), arrived.from);
        MILLRACE_CHECK(
            found != place_.replicas.end(),
            fmt::format("a message of rank {}, which has no such replica", arrived.from));
        taken_.from = arrived.tag.microbatch == 1
                          ? kServer
                          : static_cast<int>(found - place_.replicas.begin());
        taken_.kind = arrived.tag.tensor;
        adopt(std::move(arrived.tensor), want_.vector);
      }
      break;
    }
    case Want::kReduction: {
      Meeting& meeting = meetings_.at(static_cast<std::size_t>(want_.group));
      reduce(*meeting.group, elements(*want_.vector), want_.range, transfer);
      break;
    }
    case Want::kStarted: {
      const double start_s = monotonic_s();
      background_.wait(want_.number);
      transfer.wait_s = monotonic_s() - start_s;
      const std::lock_guard<std::mutex> lock(started_mutex_);
      const auto found = started_.find(want_.number);
      transfer.bytes = found->second.transfer.bytes;
      awaited_.push_back(found->second);
      started_.erase(found);
      break;
    }
  }
  transfer_.wait_s += transfer.wait_s;
  transfer_.bytes += want_.kind == Want::kReduction || want_.kind == Want::kStarted
                         ? transfer.bytes
                         : 0;  // a message counts where it is sent
  return true;
}

int TensorPort::make_group(const std::vector<int>& members) {
  std::vector<int> ranks;
  for (const int member : members) {
    ranks.push_back(rank_of(member));
  }
  meetings_.push_back({ranks, communicator_.group(ranks, place_.stage), nullptr});
  return static_cast<int>(meetings_.size()) - 1;
}

int64_t TensorPort::start_all_reduce(Vector& vector, Range range, int group) {
  finish_work();
  if (beside_ == nullptr) {
    beside_ = communicator_.on_lane(rule_lane(place_.stage, RuleLane::kBackground));
  }
  MILLRACE_CHECK(group >= 0 && static_cast<std::size_t>(group) < meetings_.size(),
                 fmt::format("group {}", group));
  const int64_t number = num_started_++;
  const double asked_s = monotonic_s();
  const int64_t started =
      background_.start([this, number, group, range, asked_s, tensor = elements(vector)] {
        Meeting& meeting = meetings_[static_cast<std::size_t>(group)];
        if (meeting.background == nullptr) {
          meeting.background = beside_->group(meeting.ranks, place_.stage);
        }
        BesideReduction done{.start_s = asked_s};
        reduce(*meeting.background, tensor, range, done.transfer);
        done.end_s = monotonic_s();
        const std::lock_guard<std::mutex> lock(started_mutex_);
        started_[number] = done;
      });
  MILLRACE_CHECK(started == number, "reductions are started by one thread");
  return number;
}

void TensorPort::reduce(Group& group, const at::Tensor& tensor, Range range, Transfer& transfer) {
  MILLRACE_CHECK(
      0 <= range.begin && range.begin <= range.end && range.end <= tensor.numel(),
      fmt::format("range [{}, {}) of {} elements", range.begin, range.end, tensor.numel()));
  at::Tensor part = tensor.narrow(0, range.begin, range.size());
  const Transfer moved = group.all_reduce_sum(part);
  transfer.wait_s += moved.wait_s;
  transfer.bytes += moved.bytes;
}

}  // namespace millrace
