#include "millrace/runtime/internal/slots.h"

#include <set>
#include <unordered_map>

namespace millrace::internal {

int64_t flight_window(const ActionList& list) {
  const auto counts = [](const Action& action) {
    return is_compute(action.kind) || is_send(action.kind) || is_receive(action.kind);
  };
  std::unordered_map<int64_t, std::size_t> last;  // action of each microbatch
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (int64_t m = list[i].first; counts(list[i]) && m <= list[i].last; ++m) {
      last[m] = i;
    }
  }
  std::set<int64_t> flying;
  int64_t window = 1;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (int64_t m = list[i].first; counts(list[i]) && m <= list[i].last; ++m) {
      flying.insert(m);
    }
    if (!flying.empty()) {
      window = std::max(window, *flying.rbegin() - *flying.begin() + 1);
    }
    for (int64_t m = list[i].first; counts(list[i]) && m <= list[i].last; ++m) {
      if (last.at(m) == i) {
        flying.erase(m);
      }
    }
  }
  return window;
}

}  // namespace millrace::internal
