// The least cost of every inner plan: the layers between any two cuts, on one component of a level.
// What the search over the outermost level builds on. Tables are made when first asked for; not for
// several threads.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "millrace/planner/internal/partition_costs.h"

namespace millrace::internal {

class InnerPlans {
 public:
  // costs[state, first, last]: state is the number of stages, or 0 when they are not counted.
  class Table {
   public:
    Table(int num_states, int num_cuts);
    double& at(int state, int first, int last) { return costs_[index(state, first, last)]; }
    double at(int state, int first, int last) const { return costs_[index(state, first, last)]; }

   private:
    std::size_t index(int state, int first, int last) const {
      return (static_cast<std::size_t>(state) * num_cuts_ + static_cast<std::size_t>(first)) *
                 num_cuts_ +
             static_cast<std::size_t>(last);
    }
    std::size_t num_cuts_;
    std::vector<double> costs_;
  };

  // Of plans no term of which is above `limit_s`; what is only part of others is kNever where cuts
  // are ordered, which saves most of a long chain's pairs.
  explicit InnerPlans(const PartitionCosts& costs, double limit_s = PartitionCosts::kNever)
      : costs_(costs), limit_s_(limit_s) {}

  // Of plans in one component of `level`, that is, on at most size(level) components of the level
  // below, when `outside` workers stand behind that component (see PartitionCosts). The reference
  // stays valid.
  const Table& table(int level, int outside);

  // Cost of the group between the cuts on `components` components of `level`, `after` behind them.
  // `states` is the number of stages in the group; on level 0, 1 or what stands for it.
  double group(int level, int state, int first, int last, int components, int after, int outside) {
    if (level == 0) {
      return costs_.stage(first, last, components, after, outside);
    }
    const Table& inner = table(level - 1, costs_.outside_below(level, components, after, outside));
    return costs_.group(level, inner.at(state, first, last), first, last, components);
  }

 private:
  class Filler;

  const PartitionCosts& costs_;
  const double limit_s_;
  std::map<std::pair<int, int>, Table> tables_;
};

// Rough number of steps that one table takes.
double steps_of_table(const Cuts& cuts, int size);

}  // namespace millrace::internal
