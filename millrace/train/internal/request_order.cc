#include "millrace/train/internal/request_order.h"

#include <ATen/ops/dot.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/random.h"

namespace millrace::internal {
namespace {

// Far below what one update adds, far above rounding.
constexpr double kSlack = 1e-12;
// States that lead nowhere, before the search gives up.
constexpr std::size_t kMostFailures = 200'000;

}  // namespace

RequestOrder::RequestOrder(const at::Tensor& initial,
                           const std::vector<std::vector<ServerRequest>>& requests,
                           const Release& release)
    : draws_(at::empty_like(initial)), release_(release) {
  const RandomKey key = RandomKey(1).with("request-order");
  for (int64_t i = 0; i < draws_.numel(); ++i) {
    draws_.data_ptr<double>()[i] = key.uniform(static_cast<uint64_t>(i)) - 0.5;
  }
  initial_ = project(initial);
  slack_ = kSlack * (1 + initial.abs().dot(draws_.abs()).item<double>());
  for (const std::vector<ServerRequest>& own : requests) {
    std::vector<Seen>& seen = requests_.emplace_back();
    for (const ServerRequest& request : own) {
      seen.push_back({.keep = request.keep,
                      .add = request.add.defined() ? project(request.add) : 0,
                      .reply = request.reply.defined() ? project(request.reply) : 0,
                      .has_reply = request.reply.defined(),
                      .before = request.before,
                      .changes = request.add.defined()});
    }
  }
}

double RequestOrder::project(const at::Tensor& tensor) const {
  return tensor.dot(draws_).item<double>();
}

bool RequestOrder::matches(double a, double b) const { return std::abs(a - b) <= slack_; }

bool RequestOrder::waits(const State& state, std::size_t replica) const {
  return state.replied[replica] < state.taken[replica];
}

// Whether a replica that waits may be let go: by its lead, and by what it got.
bool RequestOrder::may_go(const State& state, std::size_t replica) const {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    // One that has all its replies may have said goodbye.
    if (state.replied[r] < static_cast<int64_t>(requests_[r].size())) {
      slowest = std::min<int64_t>(slowest, state.taken[r]);
    }
  }
  const Seen& seen = requests_[replica][static_cast<std::size_t>(state.replied[replica])];
  return state.taken[replica] - slowest <= release_.most_lead && matches(state.vector, seen.reply);
}

bool RequestOrder::go_on(State& state, const Event& event) {
  const auto r = static_cast<std::size_t>(event.replica);
  const double vector = state.vector;
  if (event.takes_in) {
    const Seen& seen = requests_[r][static_cast<std::size_t>(state.taken[r])];
    state.vector = seen.keep * vector + seen.add;
    ++state.taken[r];
  }
  const bool answered = event.replies || !release_.held;
  state.replied[r] = static_cast<int16_t>(state.replied[r] + (answered ? 1 : 0));
  path_.push_back(event);
  if (path_.size() > longest_.size()) {
    longest_ = path_;
  }
  const bool found = search(state);
  path_.pop_back();
  state.replied[r] = static_cast<int16_t>(state.replied[r] - (answered ? 1 : 0));
  if (event.takes_in) {
    --state.taken[r];
  }
  state.vector = vector;
  return found;
}

bool RequestOrder::search(State& state) {
  bool all = true;
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    all = all && state.replied[r] == static_cast<int64_t>(requests_[r].size());
  }
  if (all) {
    return true;
  }
  if (gave_up_ || failed_.contains(state.key())) {
    return false;
  }
  std::optional<Event> seen;  // the next request that changes the vector and whose reply fits
  std::vector<Event> unseen;
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    const auto replica = static_cast<int>(r);
    if (release_.held && waits(state, r)) {
      if (may_go(state, r)) {
        return go_on(state, {replica, false, true});
      }
      continue;
    }
    if (state.taken[r] == static_cast<int64_t>(requests_[r].size())) {
      continue;
    }
    const Seen& next = requests_[r][static_cast<std::size_t>(state.taken[r])];
    if (release_.held || !next.has_reply) {
      unseen.push_back({replica, true, false});
    } else if (matches(next.before ? state.vector : next.keep * state.vector + next.add,
                       next.reply)) {
      if (!next.changes) {
        return go_on(state, {replica, true, true});
      }
      seen = Event{replica, true, true};
    }
  }
  if (seen) {
    return go_on(state, *seen);
  }
  for (const Event& event : unseen) {
    if (go_on(state, event)) {
      return true;
    }
  }
  failed_.insert(state.key());
  gave_up_ = failed_.size() > kMostFailures;
  return false;
}

std::optional<std::vector<RequestOrder::Event>> RequestOrder::find() {
  State state{.vector = initial_,
              .taken = std::vector<int16_t>(requests_.size(), 0),
              .replied = std::vector<int16_t>(requests_.size(), 0)};
  found_all_ = search(state);
  if (gave_up_) {
    return std::nullopt;
  }
  return longest_;
}

}  // namespace millrace::internal
