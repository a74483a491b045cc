// The step that partition searches share: where should a group end, when the group costs the less
// and the rest the more, the nearer the end is to the group's beginning? A plain value.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

namespace millrace::internal {

// The end of a group; `key` is what all beyond it costs.
struct Ending {
  int cut = 0;
  double key = 0;
};

// Endings that move towards the group's fixed side, with rising keys. One that comes later and has
// no larger key makes the earlier ones useless: the group before it costs no more.
class Endings {
 public:
  void add(Ending ending) {
    while (!entries_.empty() && entries_.back().key >= ending.key) {
      entries_.pop_back();
    }
    entries_.push_back(ending);
  }

  // The ending with the least max(key, group(cut)), or null when there is none: one falls where the
  // other rises, so it is at their crossing.
  template <typename Group>
  const Ending* best(const Group& group) const {
    const auto crossing = std::partition_point(
        entries_.begin(), entries_.end(), [&](const Ending& e) { return group(e.cut) >= e.key; });
    if (crossing == entries_.begin()) {
      return crossing == entries_.end() ? nullptr : &*crossing;
    }
    const Ending& before = *std::prev(crossing);
    return crossing != entries_.end() && crossing->key < group(before.cut) ? &*crossing : &before;
  }

 private:
  std::vector<Ending> entries_;
};

}  // namespace millrace::internal
