// Spinning before sleeping: a hand-over between two running threads takes well under a microsecond,
// waking a sleeper several. How long to spin is learnt from the waits before, because spinning in
// vain takes a core from others.
#pragma once

#include <algorithm>

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

  // Tells how long the wait was in the end: long ones make the next spin shorter, down to a
  // sixteenth; one that spinning would have covered restores it.
  void learn(double waited_s) {
    budget_s_ = waited_s <= most_s_ ? most_s_ : std::max(budget_s_ / 2, most_s_ / 16);
  }

 private:
  double most_s_;
  double budget_s_;
};

}  // namespace millrace::internal
