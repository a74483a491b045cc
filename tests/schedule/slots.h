// For the tests of this folder: bare lists timed in slots, with messages that take none. Shares no
// code with the simulator and the list scheduler, so that they can be compared with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/action.h"
#include "millrace/schedule/registry.h"

namespace millrace::testing {

struct Timed {
  double start = -1;
  double end = -1;
};
using Times = std::vector<std::vector<Timed>>;  // of each rank's actions

// F lasts f, B b, I and W b/2 for each of its microbatches. Stops where the lists deadlock, which
// leaves the rest at -1.
class SlotReplay {
 public:
  SlotReplay(const ActionLists& lists, double f, double b) : lists_(lists), f_(f), b_(b) {
    for (const ActionList& list : lists) {
      times_.emplace_back(list.size());
      for (const Action& action : list) {
        num_stages_ = std::max(num_stages_, action.stage + 1);
        num_microbatches_ = std::max(num_microbatches_, action.last + 1);
      }
    }
    done_.assign(static_cast<std::size_t>(3 * num_stages_ * num_microbatches_), -1);
  }

  Times run() {
    std::vector<std::size_t> next(lists_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
        while (next[rank] < lists_[rank].size() && act(rank, next[rank])) {
          ++next[rank];
          moved = true;
        }
      }
    }
    return times_;
  }

 private:
  enum Result { kActivation, kGradient, kHalf };  // of F; of B or I; of I on its own stage

  double& done(Result result, int stage, int64_t m) {
    return done_[static_cast<std::size_t>((result * num_stages_ + stage) * num_microbatches_ + m)];
  }

  bool act(std::size_t rank, std::size_t index) {
    const Action& a = lists_[rank][index];
    const bool forward = a.kind == ActionKind::kForward;
    const bool weight = a.kind == ActionKind::kWeightGradient;
    double start = index == 0 ? 0 : times_[rank][index - 1].end;
    for (int64_t m = a.first; m <= a.last; ++m) {
      std::vector<double> needed;
      if (forward) {
        needed.push_back(a.stage == 0 ? 0 : done(kActivation, a.stage - 1, m));
      } else if (weight) {
        needed.push_back(done(kHalf, a.stage, m));
      } else {
        needed.push_back(done(kActivation, a.stage, m));
        needed.push_back(a.stage + 1 == num_stages_ ? 0 : done(kGradient, a.stage + 1, m));
      }
      for (const double end : needed) {
        if (end < 0) {
          return false;
        }
        start = std::max(start, end);
      }
    }
    const double each = forward ? f_ : a.kind == ActionKind::kBackward ? b_ : b_ / 2;
    const double end = start + each * static_cast<double>(a.num_microbatches());
    times_[rank][index] = {start, end};
    for (int64_t m = a.first; m <= a.last && !weight; ++m) {
      done(forward ? kActivation : kGradient, a.stage, m) = end;
      if (a.kind == ActionKind::kInputGradient) {
        done(kHalf, a.stage, m) = end;
      }
    }
    return true;
  }

  const ActionLists& lists_;
  double f_;
  double b_;
  int num_stages_ = 0;
  int64_t num_microbatches_ = 0;
  std::vector<double> done_;  // [result][stage][microbatch]
  Times times_;
};

inline Times run_in_slots(const ActionLists& lists, double f, double b) {
  return SlotReplay(lists, f, b).run();
}

// Of a whole replay: when it ends, and what all ranks wait in it.
struct Window {
  double slots = 0;
  double idle = 0;
};
inline Window window_of(const Times& times) {
  Window window;
  double busy = 0;
  for (const std::vector<Timed>& rank : times) {
    for (const Timed& action : rank) {
      window.slots = std::max(window.slots, action.end);
      busy += action.end - action.start;
    }
  }
  window.idle = static_cast<double>(times.size()) * window.slots - busy;
  return window;
}

// What one rank waits between its own first and last action.
inline double inner_idle(const std::vector<Timed>& rank) {
  double idle = 0;
  for (std::size_t i = 1; i < rank.size(); ++i) {
    idle += rank[i].start - rank[i - 1].end;
  }
  return idle;
}

// Most (stage, microbatch) pairs of a rank whose F ran and whose `until` has not.
inline int peak_stash(const ActionList& list, ActionKind until) {
  int64_t now = 0;
  int64_t peak = 0;
  for (const Action& action : list) {
    now += action.kind == ActionKind::kForward ? action.num_microbatches()
           : action.kind == until              ? -action.num_microbatches()
                                               : 0;
    peak = std::max(peak, now);
  }
  return static_cast<int>(peak);
}

// To B, or to W where the backward is split.
inline int peak_stash(const ActionList& list) {
  const bool split = std::any_of(list.begin(), list.end(), [](const Action& action) {
    return action.kind == ActionKind::kWeightGradient;
  });
  return peak_stash(list, split ? ActionKind::kWeightGradient : ActionKind::kBackward);
}

// The config with V filled in, as the schedule's functions see it.
inline ScheduleConfig with_chunks(const ScheduleEntry& entry, ScheduleConfig config) {
  config.chunks = config.chunks == 0 ? entry.builtin->chunks : config.chunks;
  return config;
}

}  // namespace millrace::testing
