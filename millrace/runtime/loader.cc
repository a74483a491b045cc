#include "millrace/runtime/loader.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"

namespace millrace {
namespace {

// How often a rank that waits looks whether the run is broken.
constexpr std::chrono::milliseconds kPoll{50};

// After so many parts in a row that were not worth it, the thread ends: the one that was may have
// been held up by chance.
constexpr int kManyFast = 64;

bool takes_part(const Action& action, bool loads_again) {
  return action.kind == ActionKind::kForward ||
         (loads_again &&
          (action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient));
}

}  // namespace

LoadOrder load_order(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                     const std::vector<bool>& loads, bool loads_again) {
  LoadOrder order;
  for (const Action& action : lowered.ranks.at(static_cast<std::size_t>(rank))) {
    if (!takes_part(action, loads_again) || !loads.at(static_cast<std::size_t>(action.stage)) ||
        action.first / lowered.microbatches_per_step >= num_steps) {
      continue;
    }
    for (int64_t m = action.first; m <= action.last; ++m) {
      order.list.push_back(m);
    }
  }
  if (lowered.flush) {
    order.stride = lowered.microbatches_per_step;
    order.repeats = num_steps;
  }
  return order;
}

Loader::Loader(const Feed& feed, LoadOrder order, std::function<bool()> broken, int depth,
               double worth_s)
    : feed_(feed),
      order_(std::move(order)),
      broken_(std::move(broken)),
      depth_(static_cast<std::size_t>(depth)),
      worth_s_(worth_s) {
  MILLRACE_CHECK(depth >= 1);
}

Loader::~Loader() { join(); }

void Loader::join() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;
  }
  taken_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

// The next part that has samples; nothing at the end of the order.
std::optional<int64_t> Loader::next() {
  for (; repeat_ < order_.repeats; ++repeat_, index_ = 0) {
    while (index_ < order_.list.size()) {
      const int64_t microbatch = order_.list[index_++] + repeat_ * order_.stride;
      if (feed_.part_samples(microbatch) > 0) {
        return microbatch;
      }
    }
  }
  return std::nullopt;
}

Batch Loader::take(int64_t microbatch) {
  if (!thread_.joinable()) {
    return load_here(microbatch);
  }
  Loaded taken;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!wait_loaded(lock)) {
      if (failure_) {
        std::rethrow_exception(failure_);
      }
      lock.unlock();
      join();
      leaving_ = false;
      ended_ = false;
      return load_here(microbatch);
    }
    taken = std::move(ready_.front());
    ready_.pop_front();
  }
  taken_.notify_one();
  MILLRACE_CHECK(taken.microbatch == microbatch,
                 fmt::format("part {} is not the next one", microbatch));
  return std::move(taken.batch);
}

// False when the thread has ended and all that it loaded was taken.
bool Loader::wait_loaded(std::unique_lock<std::mutex>& lock) {
  const auto come = [this] { return !ready_.empty() || ended_; };
  if (!come()) {
    const double start_s = monotonic_s();
    while (!loaded_.wait_for(lock, kPoll, come)) {
      if (broken_ && broken_()) {
        throw Error(ErrorCode::kPeerLost,
                    "the run ended while this rank waited for its samples to be loaded");
      }
    }
    wait_s_ += monotonic_s() - start_s;
  }
  return !ready_.empty();
}

Batch Loader::load_here(int64_t microbatch) {
  const std::optional<int64_t> following = next();
  MILLRACE_CHECK(following == microbatch, fmt::format("part {} is not the next one", microbatch));
  const double start_s = monotonic_s();
  Batch batch = feed_.part(microbatch);
  const double seconds = monotonic_s() - start_s;
  if (seconds >= worth_s_) {
    wait_s_ += seconds;
    thread_ = std::thread([this] { run(); });
  }
  return batch;
}

void Loader::run() {
  at::set_num_threads(1);  // as the rank's
  std::exception_ptr failure;
  try {
    load_ahead();
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    ended_ = true;
  }
  loaded_.notify_one();
}

void Loader::load_ahead() {
  int num_fast = 0;  // in a row
  while (num_fast < kManyFast && wait_for_room()) {
    const std::optional<int64_t> microbatch = next();
    if (!microbatch) {
      return;
    }
    const double start_s = monotonic_s();
    Loaded loaded{*microbatch, feed_.part(*microbatch)};
    num_fast = monotonic_s() - start_s < worth_s_ ? num_fast + 1 : 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ready_.push_back(std::move(loaded));
    }
    loaded_.notify_one();
  }
}

// Before a part is loaded, so that no more than depth_ are ever held. False when the loader is to
// leave.
bool Loader::wait_for_room() {
  std::unique_lock<std::mutex> lock(mutex_);
  taken_.wait(lock, [this] { return leaving_ || ready_.size() < depth_; });
  return !leaving_;
}

}  // namespace millrace
