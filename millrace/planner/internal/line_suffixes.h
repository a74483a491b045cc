// The preferred suffixes of one last cut on level 0, for cuts of which each holds all earlier ones,
// where neither memory nor stages are counted. Used by preferred.cc for the inner plans of long
// chains, of which it needs very many. Not for several threads at once.
#pragma once

#include <deque>
#include <vector>

#include "millrace/planner/internal/partition_costs.h"
#include "millrace/planner/internal/suffix.h"

namespace millrace::internal {

// Why it is quick: a plan of fewer layers needs no more workers, and as many workers no more
// stages. So of all ends that a first stage of r replicas can reach, the furthest leaves the best
// rest, and equally good ones stand next to it. Each r has one furthest end, which only moves back
// as the first cut does.
class LineSuffixes {
 public:
  static bool applies(const PartitionCosts& costs) {
    return costs.cuts().ordered() && !costs.with_memory() && !costs.counts_stages() &&
           costs.least(costs.start()) == 1;
  }

  // No term may be above `limit`. `costs` must outlive it.
  LineSuffixes(const PartitionCosts& costs, int last, double limit);

  // Of those that begin in `first`, on at most one component of the level above, the one with the
  // fewest workers, then the fewest stages, then the earliest cuts; null when there is none. The
  // pointer stays valid. Extends what was asked before.
  const Suffix* at(int first);

 private:
  void extend();
  int fewest(int first, int cut) const;
  const Suffix& behind(int cut) const { return suffixes_[static_cast<std::size_t>(last_ - cut)]; }

  const PartitionCosts& costs_;
  int last_;
  double limit_;
  int most_;                     // replicas
  bool ended_ = false;           // no suffix begins in this cut or an earlier one
  std::vector<int> ends_;        // by replicas, the furthest cut
  std::vector<int> open_;        // cuts that may end a stage, descending; beginning with last
  std::deque<Suffix> suffixes_;  // by last - first; the first one is empty; does not move them
};

}  // namespace millrace::internal
