// Waiting for a point in time, as emulated devices and links do. Torch-free; any thread.
#pragma once

#include "millrace/transport/mailbox.h"

namespace millrace {

// Returns at `deadline_s` of monotonic_s() or as soon after as the machine wakes the thread; at
// once when that is past. Sleeps, so that other ranks get the core; only the last `spin_s` seconds,
// at most kLongestSpinS, are spun, which hits the moment where there is a core to spare. Throws
// kPeerLost within some tens of milliseconds of the flag's being raised, also when called after it.
void pause_until(double deadline_s, const AbortFlag& abort, double spin_s = 0);

inline constexpr double kLongestSpinS = 50e-6;

}  // namespace millrace
