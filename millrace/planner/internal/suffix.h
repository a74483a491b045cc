// A plan from one cut to a fixed last one on one component, as the tie rule of the partition search
// compares it. Used by preferred.cc and line_suffixes.cc. Plain values; no threads.
#pragma once

#include <utility>
#include <vector>

namespace millrace::internal {

// Its first group and what follows. Who makes one keeps it and those that it points to alive.
struct Suffix {
  int components = 0;  // of its level, used
  int workers = 0;
  int stages = 0;
  int cut = 0;  // where the first group ends
  int replicas = 1;
  const Suffix* inner = nullptr;  // what each component of the group runs; null on level 0
  const Suffix* rest = nullptr;
};

// The ends of the stages of a suffix, one after another.
class SuffixEnds {
 public:
  explicit SuffixEnds(const Suffix& suffix) { descend(&suffix); }
  bool done() const { return open_.empty(); }
  int cut() const { return open_.back()->cut; }
  void next() {
    while (!open_.empty()) {
      const Suffix* rest = open_.back()->rest;
      open_.pop_back();
      if (rest != nullptr) {
        descend(rest);
        return;
      }
    }
  }

 private:
  void descend(const Suffix* suffix) {
    for (; suffix != nullptr; suffix = suffix->inner) {
      open_.push_back(suffix);
    }
  }
  std::vector<const Suffix*> open_;  // one a level; the last is a stage
};

// Fewest workers, then fewest stages, then earliest cuts.
inline bool goes_before(const Suffix& a, const Suffix& b) {
  const auto key = [](const Suffix& s) { return std::pair(s.workers, s.stages); };
  if (key(a) != key(b)) {
    return key(a) < key(b);
  }
  SuffixEnds a_ends(a);
  SuffixEnds b_ends(b);
  for (; !a_ends.done() && !b_ends.done(); a_ends.next(), b_ends.next()) {
    if (a_ends.cut() != b_ends.cut()) {
      return a_ends.cut() < b_ends.cut();
    }
  }
  return a_ends.done() && !b_ends.done();
}

}  // namespace millrace::internal
