// What the partition search asks about stages: their cost, which is time or memory, and which
// numbers of components they may get. Used by best_times and partition.cc only. Immutable; no
// threads.
#pragma once

#include <algorithm>
#include <limits>

#include "millrace/planner/internal/partition.h"

namespace millrace::internal {

enum class Aim { kTime, kMemory };  // the least slowest stage, or the least largest memory

class PartitionCosts {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // `coarse`: numbers of workers outside are rounded up to powers of two, so that fewer tables of
  // inner plans are needed.
  PartitionCosts(const PartitionProblem& problem, Aim aim, bool coarse)
      : problem_(problem),
        aim_(aim),
        coarse_(coarse),
        with_memory_(problem.memory_bytes || aim == Aim::kMemory) {}

  const Cuts& cuts() const { return problem_.cuts; }
  bool with_memory() const { return with_memory_; }
  bool coarse() const { return coarse_; }
  int top() const { return static_cast<int>(problem_.network.levels.size()) - 1; }
  int size(int level) const { return at(level).size; }

  // Stages are counted only when the request names their number: state s means "s stages left".
  bool counts_stages() const { return problem_.stages.has_value(); }
  int num_states() const { return counts_stages() ? *problem_.stages + 1 : 1; }
  int start() const { return num_states() - 1; }
  // Stages that one group of `level` may consist of, from..to.
  int fewest_inner() const { return counts_stages() ? 1 : 0; }
  int most_inner(int level) const {
    return level > 0 && counts_stages() ? *problem_.stages : fewest_inner();
  }

  // Components that the group which begins with `state` stages left may get.
  int least(int state) const { return fixed(state) ? given(state) : 1; }
  int most(int level, int state) const { return fixed(state) ? given(state) : size(level); }

  // Minibatches in flight come from outside a component too. A group on `components` components of
  // `level`, with `after` components of its level behind it and `outside` workers behind its
  // level's own component, has after x devices + outside workers behind it, shared among its
  // components, rounded up. That is the `outside` of the level below. 0 when memory is not asked
  // for.
  int outside_below(int level, int components, int after, int outside) const {
    if (!with_memory_ || level == 0) {
      return 0;
    }
    const int behind = after * at(level).devices + outside;
    const int share = (behind + components - 1) / components;
    int rounded = share;
    if (coarse_ && share > 0) {
      for (rounded = 1; rounded < share;) {
        rounded *= 2;
      }
    }
    return rounded;
  }

  // Of one worker for all layers between the cuts.
  double compute_s(int first, int last) const {
    return cuts().compute_s(first, last) / problem_.network.relative_speed;
  }

  // A stage on level 0, as the family has it.
  double stage(int first, int last, int replicas, int after, int outside) const {
    const double parameter_bytes = static_cast<double>(cuts().parameter_bytes(first, last));
    if (with_memory_) {
      const int in_flight = (replicas + after + outside + replicas - 1) / replicas;
      const double bytes =
          in_flight * (parameter_bytes + static_cast<double>(cuts().stash_bytes(first, last))) +
          parameter_bytes;
      if (aim_ == Aim::kMemory) {
        return bytes;
      }
      if (bytes > *problem_.memory_bytes) {
        return kNever;
      }
    }
    return group_s(compute_s(first, last), cuts().parameter_bytes(first, last), replicas,
                   at(0).bandwidth_bytes_per_s);
  }

  // A group on a higher level, each component of which costs `inner`.
  double group(int level, double inner, int first, int last, int components) const {
    return aim_ == Aim::kMemory ? inner
                                : group_s(inner, cuts().parameter_bytes(first, last), components,
                                          at(level).bandwidth_bytes_per_s);
  }

  double cut(int level, int at_cut) const {
    return aim_ == Aim::kMemory
               ? 0.0
               : cut_s(cuts().output_bytes(at_cut), at(level).bandwidth_bytes_per_s);
  }

 private:
  const Level& at(int level) const {
    return problem_.network.levels[static_cast<std::size_t>(level)];
  }
  bool fixed(int state) const {
    return !problem_.replicas.empty() && (problem_.replicas.size() == 1 || state > 0);
  }
  int given(int state) const {
    return problem_.replicas.size() == 1
               ? problem_.replicas[0]
               : problem_.replicas[static_cast<std::size_t>(start() - state)];
  }

  const PartitionProblem& problem_;
  const Aim aim_;
  const bool coarse_;
  const bool with_memory_;
};

}  // namespace millrace::internal
