// Loader: prepares the samples of the microbatches to come on a thread of its own, while its rank
// trains on the one at hand. Used by the worker, for ranks whose stages take the data or the
// targets.
//
// Two buffers as in Ma, Mao, Taylor, "Theano-MPI: a Theano-based Distributed Training Framework",
// arXiv 1605.08325 (parallel loading): one is trained on, one is filled. An epoch of n parts that
// take L to load and C to train takes L + (n - 1) max(L, C) + C. Ours, not the paper's: the loader
// is a thread and hands over the tensors themselves; it may be further ahead than one part, which
// evens out parts that take different times; and parts that load faster than two threads can talk
// about them are loaded by the rank.
//
// Threads: take() from one thread, the rank's. Shared with the loading thread are the queue, under
// one mutex, and the feed with its dataset, which nobody changes. The place in the order belongs to
// the rank while there is no loading thread, else to that thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/core/schedule.h"
#include "millrace/runtime/feed.h"

namespace millrace {

// The parts that a rank will ask for, in order: those of `list`, `repeats` times over, each time
// `stride` further on.
struct LoadOrder {
  std::vector<int64_t> list;
  int64_t stride = 0;
  int64_t repeats = 1;
};

// What a rank loads in `num_steps` steps for those of its stages for which `loads` is true, by
// stage: a part at each forward, and once more at its backward where that `loads_again`.
LoadOrder load_order(const LoweredSchedule& lowered, int rank, int64_t num_steps,
                     const std::vector<bool>& loads, bool loads_again);

class Loader {
 public:
  // Most parts that are loaded, or being loaded, and not taken.
  static constexpr int kDepth = 2;
  // A part that takes as long is worth a thread: several times what a hand-over costs.
  static constexpr double kWorthS = 50e-6;

  // Empty parts of the order are left out: nobody asks for them. `feed` outlives the loader;
  // `broken`, which may be empty, is asked by the rank while it waits: true ends the wait. The rank
  // loads its parts itself until one takes `worth_s`, at least the first; and again after many in a
  // row that took less.
  Loader(const Feed& feed, LoadOrder order, std::function<bool()> broken, int depth = kDepth,
         double worth_s = kWorthS);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  // Lets the part at hand be loaded to its end and drops what nobody took.
  ~Loader();

  // The next part of the order, which must be this one. Waits until it is loaded. Throws what
  // loading it threw, after all parts before it were taken, and kPeerLost once the run is broken;
  // nothing can be taken after that.
  Batch take(int64_t microbatch);

  // Seconds that the rank waited in take(), or itself loaded what was worth a thread, since this
  // was asked last.
  double take_wait_s() { return std::exchange(wait_s_, 0.0); }

 private:
  struct Loaded {
    int64_t microbatch = 0;
    Batch batch;
  };

  std::optional<int64_t> next();
  Batch load_here(int64_t microbatch);
  bool wait_loaded(std::unique_lock<std::mutex>& lock);
  void run();
  void load_ahead();
  bool wait_for_room();
  void join();

  const Feed& feed_;
  const LoadOrder order_;
  const std::function<bool()> broken_;
  const std::size_t depth_;
  const double worth_s_;

  // The place in the order.
  std::size_t index_ = 0;
  int64_t repeat_ = 0;

  double wait_s_ = 0;   // the rank's
  std::thread thread_;  // the rank's; joinable while it loads ahead

  std::mutex mutex_;
  std::condition_variable loaded_;  // for the rank
  std::condition_variable taken_;   // for the loading thread
  std::deque<Loaded> ready_;
  std::exception_ptr failure_;
  bool ended_ = false;  // the thread loads no more
  bool leaving_ = false;
};

}  // namespace millrace
