#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/rule/arithmetic.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

const double kUnset = std::numeric_limits<double>::quiet_NaN();

}  // namespace

PlainPort::PlainPort(RuleWorld& world, int member) : world_(&world), member_(member) {
  std::vector<int> everybody(static_cast<std::size_t>(world.config_.num_members));
  std::iota(everybody.begin(), everybody.end(), 0);
  for (Buffer* buffer : {&gradient_, &current_, &next_, &velocity_, &result_}) {
    resize(*buffer, num_elements());
  }
  if (!world.config_.initial.empty()) {
    set_values(current_, 0, world.config_.initial);
  }
  static_cast<Vector&>(weights_) = current_;
  make_group(everybody);
}

int PlainPort::num_members() const { return world_->config_.num_members; }

int PlainPort::node_of(int member) const {
  const std::vector<int>& nodes = world_->config_.nodes;
  return nodes.empty() ? 0 : nodes.at(static_cast<std::size_t>(member));
}

int64_t PlainPort::num_elements() const { return world_->config_.num_elements; }

const Update& PlainPort::update() const {
  if (!in_update_) {
    throw world_failure(name_of_member(member_) +
                        " asks for the update outside of gradients_ready and step");
  }
  return update_;
}

double PlainPort::loss() const {
  const WorldConfig& config = world_->config_;
  return config.loss ? config.loss(member_, update().step)
                     : std::numeric_limits<double>::quiet_NaN();
}

void PlainPort::resize(Buffer& buffer, int64_t size) const {
  buffer.size = size;
  buffer.is_double = world_->config_.is_double;
  const auto length = static_cast<std::size_t>(size);
  if (buffer.is_double) {
    buffer.doubles.assign(length, 0);
    buffer.data = buffer.doubles.data();
  } else {
    buffer.floats.assign(length, 0);
    buffer.data = buffer.floats.data();
  }
}

Vector& PlainPort::make_vector(int64_t size) {
  vectors_.emplace_back();
  resize(vectors_.back(), size);
  return vectors_.back();
}

PlainPort::Buffer& PlainPort::own(Vector& vector) {
  for (Buffer& buffer : vectors_) {
    if (&buffer == &vector) {
      return buffer;
    }
  }
  throw world_failure(name_of_member(member_) +
                      " receives into or gives a vector that is not the rule's own");
}

void PlainPort::apply_to(Vector& delta, Vector& gradient, double samples) {
  if (!(samples > 0) || delta.size != num_elements() || gradient.size != num_elements()) {
    throw world_failure(name_of_member(member_) +
                        " applies no samples, or a vector of another size");
  }
  const WorldConfig& config = world_->config_;
  visit(delta, [&](auto to) {
    using T = typename decltype(to)::element_type;
    const T* w = static_cast<const T*>(current_.data);
    T* g = static_cast<T*>(gradient.data);
    T* v = static_cast<T*>(velocity_.data);
    for (std::size_t i = 0; i < to.size(); ++i) {
      v[i] = static_cast<T>(config.momentum) * v[i] + g[i] / static_cast<T>(samples) +
             static_cast<T>(config.decay) * w[i];
      to[i] = static_cast<T>(-update_.lr) * v[i];
      g[i] = 0;
    }
  });
  applied_.push_back({update_.step, values_of(delta)});
}

void PlainPort::apply(Vector& gradient, double samples) {
  Buffer delta;
  resize(delta, num_elements());
  apply_to(delta, gradient, samples);
  visit(weights_, [&](auto to) {
    using T = typename decltype(to)::element_type;
    const T* w = static_cast<const T*>(current_.data);
    const T* d = static_cast<const T*>(delta.data);
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = w[i] + d[i];
    }
  });
}

void PlainPort::send(int to, int kind, const Vector* vector, const Numbers& numbers) {
  if (kind < 0 || kind > 15 || to < kServer || to >= num_members() || to == member_ ||
      (to == kServer && world_->server_ == nullptr)) {
    throw world_failure(
        fmt::format("{} sends kind {} to {}", name_of_member(member_), kind, name_of_member(to)));
  }
  Packet packet{member_, to, kind, numbers, {}, now_s_};
  ++counts_.messages;
  if (vector != nullptr) {
    packet.values = values_of(*vector);
    counts_.elements += vector->size;
    counts_.bytes += vector->bytes();
  }
  world_->post(std::move(packet));
}

void PlainPort::give(int to, int kind, Vector& vector, const Numbers& numbers) {
  Buffer& buffer = own(vector);
  send(to, kind, &buffer, numbers);
  set_values(buffer, 0, Values(static_cast<std::size_t>(buffer.size), kUnset));
}

int PlainPort::make_group(const std::vector<int>& members) {
  if (member_ != kServer && std::find(members.begin(), members.end(), member_) == members.end()) {
    throw world_failure(name_of_member(member_) + " makes a group that it is not in");
  }
  const std::pair<std::vector<int>, int> key(members, made_[members]++);
  const auto [at, is_new] =
      world_->group_numbers_.try_emplace(key, static_cast<int>(world_->groups_.size()));
  if (is_new) {
    world_->groups_.push_back(members);
  }
  groups_.push_back(at->second);
  return static_cast<int>(groups_.size()) - 1;
}

int64_t PlainPort::start_all_reduce(Vector& vector, Range range, int group) {
  Started started{world_->join(*this, vector, range, group), &vector, range,
                  values_of(vector, range)};
  under_way_.emplace(num_started_, std::move(started));
  return num_started_++;
}

bool PlainPort::ready() {
  if (want_.kind == Want::kReduction) {
    blocking_ = world_->join(*this, *want_.vector, want_.range, want_.group);
  }
  state_ = State::kWaiting;
  return false;
}

std::deque<Packet>::const_iterator PlainPort::find_packet() const {
  if (want_.kind != Want::kFrom) {
    return inbox_.begin();
  }
  return std::find_if(inbox_.begin(), inbox_.end(), [&](const Packet& packet) {
    return packet.from == want_.from && packet.kind == want_.message_kind;
  });
}

bool PlainPort::possible() const {
  if (state_ == State::kReady) {
    return true;
  }
  if (state_ == State::kIdle) {
    return false;
  }
  switch (want_.kind) {
    case Want::kPoll:
      return true;
    case Want::kReduction:
      return world_->complete(blocking_);
    case Want::kStarted: {
      const auto at = under_way_.find(want_.number);
      if (at == under_way_.end()) {
        throw world_failure(name_of_member(member_) +
                            " waits for a reduction that it did not start");
      }
      return world_->complete(at->second.reduction);
    }
    default:
      return find_packet() != inbox_.end();
  }
}

std::string PlainPort::waits_for() const {
  switch (want_.kind) {
    case Want::kReduction:
      return "a reduction";
    case Want::kStarted:
      return fmt::format("its reduction number {}", want_.number);
    case Want::kFrom:
      return fmt::format("a message of kind {} from {}", want_.message_kind,
                         name_of_member(want_.from));
    default:
      return "any message";
  }
}

Message PlainPort::take() {
  state_ = State::kIdle;
  if (want_.kind == Want::kReduction) {
    world_->take_sum(*this, blocking_, *want_.vector);
    return {};
  }
  if (want_.kind == Want::kStarted) {
    const auto at = under_way_.find(want_.number);
    const Started& started = at->second;
    if (distance(values_of(*started.vector, started.range), started.part) != 0) {
      throw world_failure(name_of_member(member_) + " touched a range while it was being reduced");
    }
    world_->take_sum(*this, started.reduction, *started.vector);
    under_way_.erase(at);
    return {};
  }
  const auto found = find_packet();
  if (found == inbox_.end()) {
    return {.here = false};
  }
  const auto place = static_cast<std::size_t>(found - inbox_.cbegin());
  const Packet packet = std::move(inbox_[place]);
  inbox_.erase(found);
  if (packet.values.has_value() && want_.vector == nullptr) {
    throw world_failure(name_of_member(member_) + " expects no vector with a message that has one");
  }
  if (packet.values.has_value()) {
    Buffer& buffer = own(*want_.vector);
    resize(buffer, static_cast<int64_t>(packet.values->size()));
    set_values(buffer, 0, *packet.values);
  }
  now_s_ = std::max(now_s_, packet.sent_s);
  return {true, packet.from, packet.kind, packet.numbers};
}

}  // namespace millrace
