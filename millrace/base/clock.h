// Monotonic time in seconds, for deadlines and traces.
#pragma once

#include <chrono>

namespace millrace {

inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace millrace
