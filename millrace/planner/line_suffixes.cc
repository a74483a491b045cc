#include "millrace/planner/internal/line_suffixes.h"

#include <algorithm>
#include <tuple>

namespace millrace::internal {

LineSuffixes::LineSuffixes(const PartitionCosts& costs, int last, double limit)
    : costs_(costs), last_(last), limit_(limit), most_(costs.most(0, costs.start())) {
  ends_.assign(static_cast<std::size_t>(most_) + 1, last);
  ends_[0] = 0;
  open_.push_back(last);
  suffixes_.emplace_back();
}

const Suffix* LineSuffixes::at(int first) {
  while (!ended_ && last_ - first >= static_cast<int>(suffixes_.size())) {
    extend();
  }
  return last_ - first < static_cast<int>(suffixes_.size()) ? &behind(first) : nullptr;
}

// Replicas that a stage needs; more than most_ when none are enough. More replicas compute faster
// and exchange more, so what the first that compute fast enough cannot exchange, none can.
int LineSuffixes::fewest(int first, int cut) const {
  const double alone_s = costs_.stage(first, cut, 1, 0, 0);
  int q = 1;
  if (alone_s > limit_) {
    // Rounding of the quotient is less than the one that is taken off.
    q = static_cast<int>(std::min(alone_s / limit_, static_cast<double>(most_))) - 1;
    q = std::max(q, 2);
  }
  while (q <= most_ && costs_.stage(first, cut, q, 0, 0) > limit_) {
    ++q;
  }
  return q;
}

void LineSuffixes::extend() {
  const int first = last_ - static_cast<int>(suffixes_.size());
  if (first < 0) {
    ended_ = true;
    return;
  }
  Suffix best;
  const auto key = [](const Suffix& s) { return std::pair(s.workers, s.stages); };
  int nearest = first;  // ends up to here need fewer replicas
  for (int r = 1; r <= most_; ++r) {
    int& end = ends_[static_cast<std::size_t>(r)];
    while (end > nearest && fewest(first, end) > r) {
      --end;
    }
    end = std::max(end, nearest);
    // The furthest cut up to there, and the earliest that leaves as good a rest.
    const auto furthest =
        std::partition_point(open_.begin(), open_.end(), [&](int cut) { return cut > end; });
    if (furthest != open_.end() && *furthest > nearest) {
      const auto rest = key(behind(*furthest));
      const auto beyond = std::partition_point(furthest, open_.end(), [&](int cut) {
        return cut > nearest && key(behind(cut)) == rest;
      });
      const int cut = *std::prev(beyond);
      const Suffix& after = behind(cut);
      const Suffix suffix{
          r + after.components,           r + after.workers, 1 + after.stages, cut, r, nullptr,
          cut == last_ ? nullptr : &after};
      if (suffix.components <= costs_.size(0) &&
          (best.stages == 0 ||
           std::tuple(key(suffix), suffix.cut) < std::tuple(key(best), best.cut))) {
        best = suffix;
      }
    }
    nearest = end;
  }
  if (best.stages == 0) {
    ended_ = true;
    return;
  }
  suffixes_.push_back(best);
  if (first > 0 && costs_.cut(0, first) <= limit_) {
    open_.push_back(first);
  }
}

}  // namespace millrace::internal
