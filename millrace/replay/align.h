// Alignment: by how much the clocks of a run's processes differ, from what they told each other.
// Used before anything compares times of two processes. Pure functions.
//
// Source: Hu et al., dPRO: A Generic Performance Diagnosis and Optimization Toolkit for Expediting
// Distributed DNN Training, MLSys 2022, arXiv:2205.02473, trace time alignment. Its objective (the
// spread of equal messages' durations) is replaced by bounds and their midpoints: nothing is
// received before it is sent, and nobody leaves a reduction before the last member came. So each
// pair of processes that talk both ways has an upper and a lower bound of theta = clock of one -
// clock of the other; the estimate is their middle, which is wrong by half the *difference* of the
// least delays of the two directions, and never by more than half the width. Over several
// processes: least squares to the pairs' middles, weight 1 / width^2, inside all bounds, theta of
// the first 0.
//
// What it cannot know: delays that always differ by direction look like a skew, and one offset
// stands for the whole trace, so a clock that drifts shows as bounds that contradict each other.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "millrace/replay/matches.h"

namespace millrace {

// theta = clock of process `to` - clock of process `from`.
struct ClockPair {
  int from = 0;
  int to = 0;
  double low_s = -std::numeric_limits<double>::infinity();
  double high_s = std::numeric_limits<double>::infinity();
  // Where the two directions carried messages of one size: bounds of these alone. What a larger
  // message takes longer one way is no skew.
  double equal_low_s = -std::numeric_limits<double>::infinity();
  double equal_high_s = std::numeric_limits<double>::infinity();
  int num_observed = 0;

  bool both_ways() const;
  double middle_s()
      const;  // of both ways: that of equal sizes where there is one, inside the bounds
};

struct ProcessClock {
  int process = 0;
  std::string host{};
  double offset_s = 0;      // its clock - that of the first process
  double half_width_s = 0;  // the offset is off by no more; infinite where only one bound is known
  // What the host's own clock says, for processes of the first one's host; NaN elsewhere.
  double by_host_s = std::numeric_limits<double>::quiet_NaN();
  std::string note{};  // empty, or what is missing
};

struct Alignment {
  std::vector<ProcessClock> clocks;  // one a process of the trace, ascending
  std::vector<ClockPair> pairs;
  bool consistent = true;  // false: some bounds contradict each other
};

Alignment align_clocks(const Trace& trace, const Matches& matches);

// The least-squares part: offsets of `num` clocks, the first 0, from their pairs (`from` and `to`
// are 0..num-1). Clocks that no pair of both ways joins to the first are put at the bound there is,
// or at 0.
std::vector<double> solve_offsets(int num, const std::vector<ClockPair>& pairs);

// The trace by the first process's clock.
Trace aligned(Trace trace, const Alignment& alignment);

}  // namespace millrace
