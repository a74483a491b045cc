#include "millrace/transport/pause.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <thread>

namespace millrace {
namespace {

// Linux lets a sleeper sleep 50 us longer than asked, to wake several at once; a pause is asked for
// as exact as can be. The setting is the thread's own, and making it again costs next to nothing.
void wake_me_exactly() {
#ifdef __linux__
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
}

}  // namespace

void pause_until(double deadline_s, const AbortFlag& abort, double spin_s) {
  // How long an abort may go unnoticed. The deadline stays the same, so pieces add no error.
  constexpr double kPieceS = 0.02;
  const double asleep_until_s = deadline_s - std::clamp(spin_s, 0.0, kLongestSpinS);
  bool first = true;
  while (true) {
    if (abort.raised()) {
      abort.rethrow();
    }
    const double now_s = monotonic_s();
    if (now_s >= asleep_until_s) {
      break;
    }
    if (first) {
      wake_me_exactly();
      first = false;
    }
    std::this_thread::sleep_until(
        internal::deadline_after(now_s, std::min(kPieceS, asleep_until_s - now_s)));
  }
  while (monotonic_s() < deadline_s) {
    internal::relax_cpu();
  }
}

}  // namespace millrace
