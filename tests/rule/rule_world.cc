#include "tests/rule/rule_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/rule/arithmetic.h"

namespace millrace {
namespace {

const double kUnset = std::numeric_limits<double>::quiet_NaN();

// Gives the others a turn.
struct Turn {
  std::coroutine_handle<>* waiter;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) const noexcept { *waiter = handle; }
  void await_resume() const noexcept {}
};

}  // namespace

std::string name_of_member(int member) {
  return member == Port::kServer ? "server" : fmt::format("member {}", member);
}

Error world_failure(const std::string& text) {
  return Error(ErrorCode::kInternal, "rule world: " + text);
}

Values values_of(const Vector& vector, Range range) {
  Values values;
  visit(vector,
        [&](auto all) { values.assign(all.begin() + range.begin, all.begin() + range.end); });
  return values;
}

Values values_of(const Vector& vector) { return values_of(vector, {0, vector.size}); }

void set_values(Vector& vector, int64_t begin, const Values& values) {
  visit(vector, [&](auto all) {
    using T = typename decltype(all)::element_type;
    for (std::size_t i = 0; i < values.size(); ++i) {
      all[static_cast<std::size_t>(begin) + i] = static_cast<T>(values[i]);
    }
  });
}

double distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::isnan(a[i] - b[i]) ? std::numeric_limits<double>::infinity()
                                   : std::max(most, std::abs(a[i] - b[i]));
  }
  return most;
}

RuleWorld::RuleWorld(const std::string& rule, const Value& options, WorldConfig config)
    : config_(std::move(config)), key_(config_.seed) {
  const RuleEntry& entry = find_rule(rule);
  options_ = settle_rule(entry, options);
  build(entry.make, entry.traits.serves, config_.seed);
}

RuleWorld::RuleWorld(const Factory& make, bool serves, WorldConfig config)
    : config_(std::move(config)), key_(config_.seed) {
  build(make, serves, config_.seed);
}

void RuleWorld::build(const Factory& make, bool serves, uint64_t seed) {
  for (int member = 0; member < config_.num_members; ++member) {
    rules_.push_back(make({config_.num_members, member, options_, seed}));
    ports_.push_back(std::make_unique<PlainPort>(*this, member));
  }
  if (serves) {
    server_ = std::make_unique<PlainPort>(*this, Port::kServer);
  }
}

PlainPort& RuleWorld::port(int member) {
  return member == Port::kServer ? *server_ : *ports_.at(static_cast<std::size_t>(member));
}

Values RuleWorld::weights(int member) const {
  return values_of(ports_.at(static_cast<std::size_t>(member))->current_);
}

void RuleWorld::set_weights(int member, const Values& values) {
  set_values(port(member).current_, 0, values);
}

double RuleWorld::samples_of(int member, int64_t step) const {
  return config_.own_samples ? config_.own_samples(member, step) : 1;
}

uint64_t RuleWorld::draw(uint64_t bound) { return key_.below(num_draws_++, bound); }

Task RuleWorld::update(int member, int64_t step) {
  PlainPort& self = port(member);
  Rule& own_rule = rule(member);
  Update& now = self.update_;
  now.step = step;
  now.lr = config_.lr_at ? config_.lr_at(step) : config_.lr;
  now.own_samples = samples_of(member, step);
  now.samples = 0;
  for (int other = 0; other < config_.num_members; ++other) {
    now.samples += samples_of(other, step);
  }
  if (config_.samples) {
    now.samples = config_.samples(step);
  }
  self.doing_ = fmt::format("update {}, gradients", step);
  self.now_s_ += config_.duration_s ? config_.duration_s(member, step) : 1;
  self.state_ = PlainPort::State::kReady;
  const Turn computing{&self.waiter_};
  co_await computing;
  if (now.own_samples > 0) {
    Values gradient;
    if (config_.gradient) {
      gradient = config_.gradient(member, step, values_of(self.current_));
    } else {
      const RandomKey key =
          RandomKey(7).with(static_cast<uint64_t>(member)).with(static_cast<uint64_t>(step));
      for (int64_t i = 0; i < config_.num_elements; ++i) {
        gradient.push_back(now.own_samples * key.normal(static_cast<uint64_t>(i)));
      }
    }
    const Values before = values_of(self.gradient_);
    std::transform(before.begin(), before.end(), gradient.begin(), gradient.begin(), std::plus<>());
    set_values(self.gradient_, 0, gradient);
  }
  self.in_update_ = true;
  for (int i = config_.num_ranges - 1; i >= 0; --i) {
    const Range range{config_.num_elements * i / config_.num_ranges,
                      config_.num_elements * (i + 1) / config_.num_ranges};
    Task ready = own_rule.gradients_ready(self, range, i == 0);
    co_await ready;
    self.state_ = PlainPort::State::kReady;
    const Turn between{&self.waiter_};
    co_await between;
  }
  self.doing_ = fmt::format("update {}, step", step);
  const Values old = values_of(self.current_);
  if (!config_.in_place) {
    set_values(self.next_, 0, Values(old.size(), kUnset));
    static_cast<Vector&>(self.weights_) = self.next_;
  }
  Task step_task = own_rule.step(self);
  co_await step_task;
  self.in_update_ = false;
  if (!config_.in_place) {
    if (distance(values_of(self.current_), old) != 0) {
      throw world_failure(name_of_member(member) + " wrote to current()");
    }
    set_values(self.current_, 0, values_of(self.next_));
    static_cast<Vector&>(self.weights_) = self.current_;
  }
  const Values made = values_of(self.current_);
  if (std::any_of(made.begin(), made.end(), [](double x) { return std::isnan(x); })) {
    throw world_failure(
        fmt::format("{} left weights unset in update {}", name_of_member(member), step));
  }
}

Task RuleWorld::work(int member, int64_t steps) {
  PlainPort& self = port(member);
  self.doing_ = "begin";
  Task begin = rule(member).begin(self);
  co_await begin;
  for (int64_t i = 0; i < steps; ++i) {
    Task one = update(member, self.steps_done_);
    co_await one;
    ++self.steps_done_;
  }
  self.doing_ = "finish";
  Task finish = rule(member).finish(self);
  co_await finish;
}

void RuleWorld::run(const std::vector<int64_t>& steps) {
  std::vector<PlainPort*> all;
  for (int member = 0; member < config_.num_members; ++member) {
    PlainPort& self = port(member);
    self.task_.emplace(work(member, steps.at(static_cast<std::size_t>(member))));
    all.push_back(&self);
  }
  if (server_ != nullptr) {
    set_values(server_->current_, 0, values_of(ports_[0]->current_));
    server_->doing_ = "serve";
    server_->task_.emplace(rules_[0]->serve(*server_));
    all.push_back(server_.get());
  }
  go_on(all);
  check_ended();
}

std::vector<Values> RuleWorld::settle() {
  std::vector<PlainPort*> all;
  std::vector<Values> before;
  for (int member = 0; member < config_.num_members; ++member) {
    PlainPort& self = port(member);
    before.push_back(weights(member));
    self.doing_ = "settle";
    self.task_.emplace(rule(member).settle(self, self.result_));
    all.push_back(&self);
  }
  go_on(all);
  check_ended();
  std::vector<Values> results;
  for (PlainPort* self : all) {
    results.push_back(values_of(self->result_));
    if (distance(values_of(self->current_), before[results.size() - 1]) != 0) {
      throw world_failure(name_of_member(self->member_) + " changed its weights in settle()");
    }
  }
  return results;
}

Values RuleWorld::settled() {
  const std::vector<Values> all = settle();
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (distance(all[i], all[0]) != 0) {
      throw world_failure(
          fmt::format("settle() gives {} on member 0, {} on member {}", all[0], all[i], i));
    }
  }
  return all[0];
}

std::vector<Packet> RuleWorld::in_flight() const {
  std::vector<Packet> all;
  for (const auto& [link, packets] : links_) {
    all.insert(all.end(), packets.begin(), packets.end());
  }
  for (const auto& port : ports_) {
    all.insert(all.end(), port->inbox_.begin(), port->inbox_.end());
  }
  if (server_ != nullptr) {
    all.insert(all.end(), server_->inbox_.begin(), server_->inbox_.end());
  }
  return all;
}

void RuleWorld::check_ended() {
  for (const Packet& packet : in_flight()) {
    throw world_failure(fmt::format("a message of kind {} from {} to {} was never taken",
                                    packet.kind, name_of_member(packet.from),
                                    name_of_member(packet.to)));
  }
  for (const auto& port : ports_) {
    if (!port->under_way_.empty()) {
      throw world_failure(name_of_member(port->member_) + " left a reduction under way");
    }
  }
  MILLRACE_CHECK(reductions_.empty());
}

void RuleWorld::resume(PlainPort& port) {
  port.state_ = port.state_ == PlainPort::State::kWaiting ? port.state_ : PlainPort::State::kIdle;
  if (!port.started_) {
    port.started_ = true;
    port.task_->start();
  } else {
    port.waiter_.resume();
    port.task_->rethrow();
  }
  if (config_.observe) {
    config_.observe();
  }
}

void RuleWorld::go_on(const std::vector<PlainPort*>& ports) {
  for (PlainPort* port : ports) {
    port->started_ = false;
    port->state_ = PlainPort::State::kReady;
  }
  while (true) {
    std::vector<PlainPort*> able;
    std::vector<std::string> stuck;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      // In lock step each has its turn after the one that had the last.
      PlainPort* port = ports[(turn_ + i) % ports.size()];
      if (port->started_ && port->task_->done()) {
        continue;
      }
      if (port->possible()) {
        able.push_back(port);
      } else {
        stuck.push_back(fmt::format("{} ({}) waits for {}", name_of_member(port->member_),
                                    port->doing_, port->waits_for()));
      }
    }
    std::vector<std::deque<Packet>*> moving;
    for (auto& [link, packets] : links_) {
      if (!packets.empty()) {
        moving.push_back(&packets);
      }
    }
    if (able.empty() && moving.empty()) {
      if (stuck.empty()) {
        return;
      }
      throw world_failure(fmt::format("deadlock: {}", fmt::join(stuck, "; ")));
    }
    if (config_.order == Order::kRandom) {
      const std::size_t chosen = draw(able.size() + moving.size());
      if (chosen >= able.size()) {
        std::deque<Packet>& link = *moving[chosen - able.size()];
        port(link.front().to).inbox_.push_back(std::move(link.front()));
        link.pop_front();
      } else {
        resume(*able[chosen]);
      }
      continue;
    }
    PlainPort* next = able.front();
    if (config_.order == Order::kTimed) {
      // Waits end when what they wait for is there, so at their port's time or at that of whoever
      // went on last: only those that compute are ahead.
      next =
          *std::min_element(able.begin(), able.end(), [](const PlainPort* a, const PlainPort* b) {
            const double a_s = a->state_ == PlainPort::State::kReady ? a->now_s_ : -1;
            const double b_s = b->state_ == PlainPort::State::kReady ? b->now_s_ : -1;
            return a_s < b_s;
          });
    }
    turn_ =
        static_cast<std::size_t>(std::find(ports.begin(), ports.end(), next) - ports.begin()) + 1;
    resume(*next);
  }
}

void RuleWorld::post(Packet packet) {
  if (config_.order == Order::kRandom) {
    links_[{packet.from, packet.to, packet.kind}].push_back(std::move(packet));
  } else {
    port(packet.to).inbox_.push_back(std::move(packet));
  }
}

std::pair<int, int64_t> RuleWorld::join(PlainPort& port, const Vector& vector, Range range,
                                        int group) {
  const int number = port.groups_.at(static_cast<std::size_t>(group));
  const std::pair<int, int64_t> key(number, port.turns_[number]++);
  Reduction& reduction = reductions_[key];
  if (reduction.parts.empty()) {
    reduction.members = groups_[static_cast<std::size_t>(number)];
    reduction.range = range;
  }
  const bool within = 0 <= range.begin && range.begin <= range.end && range.end <= vector.size;
  if (!within || !(range == reduction.range)) {
    throw world_failure(fmt::format("{} reduces [{}, {}) where others reduce [{}, {})",
                                    name_of_member(port.member_), range.begin, range.end,
                                    reduction.range.begin, reduction.range.end));
  }
  reduction.parts[port.member_] = values_of(vector, range);
  reduction.complete_s = std::max(reduction.complete_s, port.now_s_);
  ++port.counts_.reductions;
  port.counts_.reduced_elements += range.size();
  return key;
}

bool RuleWorld::complete(const std::pair<int, int64_t>& reduction) const {
  const Reduction& found = reductions_.at(reduction);
  return found.parts.size() == found.members.size();
}

void RuleWorld::take_sum(PlainPort& port, const std::pair<int, int64_t>& reduction,
                         Vector& vector) {
  Reduction& found = reductions_.at(reduction);
  Values sum(static_cast<std::size_t>(found.range.size()));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double total = found.parts.begin()->second[i];
    for (auto part = std::next(found.parts.begin()); part != found.parts.end(); ++part) {
      total += part->second[i];
      total = config_.is_double ? total : static_cast<float>(total);
    }
    sum[i] = total;
  }
  set_values(vector, found.range.begin, sum);
  port.now_s_ = std::max(port.now_s_, found.complete_s);
  if (++found.num_taken == found.members.size()) {
    reductions_.erase(reduction);
  }
}

}  // namespace millrace
