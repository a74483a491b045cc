#include "millrace/transport/meeting.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace {
namespace {

struct Arrival {
  bool present = false;
  uint64_t sequence = 0;
  Fingerprint fingerprint;
};

// What the members brought to one round. Two alternate: a member that is already in the next round
// must not disturb one that still reads this round's items, and nobody is two rounds ahead of
// anybody.
struct Round {
  std::vector<Arrival> arrivals;
  std::vector<void*> items;
  std::string problem;  // not empty: all members throw it
};

std::string rank_list(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    parts.push_back(std::to_string(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(parts, ", ");
}

std::string describe_unlike(const std::vector<int>& ranks, const Round& round) {
  const Arrival& first = round.arrivals.front();
  const bool alike =
      std::all_of(round.arrivals.begin(), round.arrivals.end(), [&](const Arrival& arrival) {
        return arrival.sequence == first.sequence && arrival.fingerprint == first.fingerprint;
      });
  if (alike) {
    return "";
  }
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    parts.push_back(fmt::format("rank {} {} as number {}", ranks[i],
                                to_string(round.arrivals[i].fingerprint),
                                round.arrivals[i].sequence));
  }
  return fmt::format(
      "expected the same from every rank of a collective operation, found {}; all must call the "
      "same operations in the same order, with equal shapes and dtypes",
      join(parts, "; "));
}

}  // namespace

struct Meeting::State {
  struct alignas(64) Member {
    explicit Member(double spin_s) : spin(spin_s) {}
    internal::AdaptiveSpin spin;
  };

  State(std::vector<int> world_ranks, double limit_s, const AbortFlag& abort_flag, double spin_s)
      : ranks(std::move(world_ranks)),
        timeout_s(limit_s),
        abort(abort_flag),
        members(ranks.size(), Member(spin_s)) {
    for (Round& round : rounds) {
      round.arrivals.resize(ranks.size());
      round.items.resize(ranks.size());
    }
  }

  Error timeout_of(int member, const Round& round, double spent_s) const;
  bool enter(int member, uint64_t number, const Arrival& arrival, void* item);
  void wait(int member, uint64_t number);

  const std::vector<int> ranks;
  const double timeout_s;
  const AbortFlag& abort;
  std::vector<Member> members;

  std::mutex mutex;
  std::condition_variable changed;
  std::array<Round, 2> rounds;
  std::size_t num_present = 0;
  int num_sleeping = 0;
  std::optional<Error> given_up;  // a member left before all were there
  alignas(64) std::atomic<uint64_t> num_completed{0};
};

Meeting::Meeting(std::vector<int> ranks, double timeout_s, const AbortFlag& abort, double spin_s) {
  internal::check_timeout(timeout_s);
  MILLRACE_CHECK(!ranks.empty(), "a meeting of nobody");
  const double spin = spin_s < 0 ? default_spin_s(static_cast<int>(ranks.size())) : spin_s;
  state_ = std::make_unique<State>(std::move(ranks), timeout_s, abort, spin);
}

Meeting::~Meeting() = default;

// Returns whether this was the last one, which completes the round.
bool Meeting::State::enter(int member, uint64_t number, const Arrival& arrival, void* item) {
  Round& round = rounds[number % 2];
  const auto index = static_cast<std::size_t>(member);
  MILLRACE_CHECK(!round.arrivals[index].present, "a member arrived twice");
  round.arrivals[index] = arrival;
  round.items[index] = item;
  if (++num_present < ranks.size()) {
    return false;
  }
  round.problem = describe_unlike(ranks, round);
  for (Arrival& each : round.arrivals) {
    each.present = false;
  }
  num_present = 0;
  num_completed.store(number + 1, std::memory_order_release);
  return true;
}

Error Meeting::State::timeout_of(int member, const Round& round, double spent_s) const {
  const auto index = static_cast<std::size_t>(member);
  std::vector<int> missing;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!round.arrivals[i].present) {
      missing.push_back(ranks[i]);
    }
  }
  const Arrival& own = round.arrivals[index];
  Error error(
      ErrorCode::kTimeout,
      fmt::format("rank {} waits for {} in collective operation {} ({}) of {}, nothing for {:.1f} "
                  "s; all must call the same operations in the same order; allow more time if "
                  "one only is slow",
                  ranks[index], rank_list(missing), own.sequence, to_string(own.fingerprint),
                  rank_list(ranks), spent_s));
  return error.at_rank(ranks[index]);
}

// Returns when round `number` is complete; else throws, after which nobody can complete it.
void Meeting::State::wait(int member, uint64_t number) {
  const double start_s = monotonic_s();
  const auto completed = [&] { return num_completed.load(std::memory_order_acquire) != number; };
  internal::AdaptiveSpin& spin = members[static_cast<std::size_t>(member)].spin;
  spin.until(start_s, [&] { return completed() || abort.raised(); });
  spin.learn(completed());
  if (completed()) {
    return;
  }
  const auto deadline = internal::deadline_after(start_s, timeout_s);
  std::unique_lock lock(mutex);
  bool in_time = true;
  while (!completed() && !given_up.has_value() && !abort.raised() && in_time) {
    ++num_sleeping;
    in_time = changed.wait_until(lock, deadline) == std::cv_status::no_timeout;
    --num_sleeping;
  }
  if (completed()) {
    return;
  }
  const bool first = !given_up.has_value();
  if (first) {
    given_up = abort.raised() ? *abort.cause()
                              : timeout_of(member, rounds[number % 2], monotonic_s() - start_s);
  }
  const Error cause = *given_up;
  lock.unlock();
  changed.notify_all();
  if (abort.raised()) {
    abort.rethrow();
  }
  if (first) {
    throw cause;
  }
  AbortFlag quote;
  quote.raise(cause);
  quote.rethrow();
}

const std::vector<void*>& Meeting::arrive(int member, uint64_t sequence,
                                          const Fingerprint& fingerprint, void* item,
                                          double* waited_s) {
  State& state = *state_;
  MILLRACE_CHECK(member >= 0 && member < static_cast<int>(state.ranks.size()));
  if (waited_s != nullptr) {
    *waited_s = 0;
  }
  std::unique_lock lock(state.mutex);
  if (state.abort.raised()) {
    state.abort.rethrow();
  }
  if (state.given_up.has_value()) {
    AbortFlag quote;
    quote.raise(*state.given_up);
    quote.rethrow();
  }
  const uint64_t number = state.num_completed.load(std::memory_order_relaxed);
  const bool last = state.enter(member, number, {true, sequence, fingerprint}, item);
  const bool wake_others = last && state.num_sleeping > 0;
  lock.unlock();
  if (wake_others) {
    state.changed.notify_all();
  }
  if (!last) {
    const double start_s = monotonic_s();
    const auto note = [&] {
      if (waited_s != nullptr) {
        *waited_s = monotonic_s() - start_s;
      }
    };
    try {
      state.wait(member, number);
    } catch (...) {
      note();
      throw;
    }
    note();
  }
  const Round& round = state.rounds[number % 2];
  if (!round.problem.empty()) {
    throw Error(ErrorCode::kInvalidArgument, round.problem)
        .at_rank(state.ranks[static_cast<std::size_t>(member)]);
  }
  return round.items;
}

void Meeting::wake() {
  { std::lock_guard lock(state_->mutex); }
  state_->changed.notify_all();
}

}  // namespace millrace
