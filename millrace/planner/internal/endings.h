// The step that partition searches share: where should a group end, when the group costs the less
// and the rest the more, the nearer the end is to the group's beginning? A plain value.
#pragma once

#include <algorithm>
#include <cstddef>
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
    num_kept_ = entries_.size();
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

  // The same for a group whose fixed side moved away from all cuts since it was last asked about:
  // it costs no less now, so the crossing has only moved on. `crossing` is where it was then, and
  // 0 at first; at most one ending was added since.
  template <typename Group>
  const Ending* best_onward(const Group& group, std::size_t& crossing) const {
    crossing = std::min(crossing, num_kept_);
    while (crossing < entries_.size() && group(entries_[crossing].cut) >= entries_[crossing].key) {
      ++crossing;
    }
    if (crossing == 0) {
      return entries_.empty() ? nullptr : &entries_.front();
    }
    const Ending& before = entries_[crossing - 1];
    return crossing < entries_.size() && entries_[crossing].key < group(before.cut)
               ? &entries_[crossing]
               : &before;
  }

 private:
  std::vector<Ending> entries_;
  std::size_t num_kept_ = 0;  // of those before the last one that was added
};

}  // namespace millrace::internal
