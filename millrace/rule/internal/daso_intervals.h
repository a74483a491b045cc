// How often DASO averages: the intervals, and the plateau test that moves them. Pure, used by the
// rule `daso`, one object a replica; equal losses give equal intervals everywhere.
//
// Source: Coquelin et al., "Accelerating neural network training with distributed asynchronous and
// selective optimization (DASO)", arXiv:2104.05588, and its code in Heat (heat/optim).
#pragma once

#include <cstdint>
#include <limits>

namespace millrace {

struct DasoIntervals {
  int64_t skip = 4;        // B: updates from one average over nodes to the next; 0: blocking
  int64_t wait = 1;        // S <= B: updates from sending to merging
  int64_t local_skip = 1;  // updates from one sum of gradients inside a node to the next
  bool operator==(const DasoIntervals&) const = default;
};

struct DasoPlateau {
  int64_t max_skip = 8;     // B after the plateau at B = 1
  double threshold = 0.05;  // a loss is better when below (1 - threshold) of the best one
  int64_t patience = 2;     // a plateau is more losses in a row than this that are not better
};

class DasoSchedule {
 public:
  DasoSchedule(const DasoIntervals& start, const DasoPlateau& plateau)
      : now_(start), plateau_(plateau) {}

  const DasoIntervals& now() const { return now_; }

  // The mean loss of one more period. On a plateau B and the local skip are halved and S falls by
  // one, none below 1; from B = 1 they go to the longest B and a quarter of it. Blocking stays.
  void observe(double loss);

 private:
  void shift();

  DasoIntervals now_;
  DasoPlateau plateau_;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t num_worse_ = 0;
};

}  // namespace millrace
