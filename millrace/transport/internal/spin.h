// Spinning before sleeping: a hand-over between two running threads takes about a microsecond,
// waking a thread on an idle core ten. How long to spin is learnt, because spinning in vain takes
// the core from whoever is waited for when other programs leave both threads but one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::internal {

inline void relax_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// One a waiting thread; not shared.
class AdaptiveSpin {
 public:
  // Never spins longer than `most_s`; 0 means never at all.
  explicit AdaptiveSpin(double most_s) : most_s_(most_s), budget_s_(most_s) {}

  // Spins until done() or until the budget, counted from `start_s`, is used up. Returns done().
  template <class Done>
  bool until(double start_s, Done done) const {
    if (budget_s_ <= 0) {
      return done();
    }
    do {
      // Reading the clock costs about as much as a pause; the flag is asked for more often.
      for (int i = 0; i < 16; ++i) {
        if (done()) {
          return true;
        }
        relax_cpu();
      }
    } while (monotonic_s() - start_s < budget_s_);
    return done();
  }

  // Tells whether spinning was enough. Each time it was not makes the next spin shorter, down to a
  // sixteenth; the longest is tried again now and then, since what is waited for may have become
  // quicker.
  void learn(bool enough) {
    if (enough) {
      num_failures_ = 0;
      budget_s_ = std::min(budget_s_ * 2, most_s_);
    } else {
      const bool try_again = ++num_failures_ % kFailuresBetweenTrials == 0;
      budget_s_ = try_again ? most_s_ : std::max(budget_s_ / 2, most_s_ / 16);
    }
  }

 private:
  static constexpr int64_t kFailuresBetweenTrials = 64;

  double most_s_;
  double budget_s_;
  int64_t num_failures_ = 0;  // in a row
};

}  // namespace millrace::internal
