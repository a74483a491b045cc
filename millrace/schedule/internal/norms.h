// Checks of NORM, where all ranks meet: for validate_lowered.cc. Used from one thread.
#pragma once

#include <vector>

#include "millrace/schedule/internal/places.h"

namespace millrace::internal {

class Norms {
 public:
  // Collects the NORMs of all ranks. `Check` must have passed check_shape.
  explicit Norms(Check& check);

  // Where one rank has a NORM, every STEP of every rank has one before it, of the same microbatches
  // and after their REDUCE (STEPs of several stages share theirs); all ranks have the same ones in
  // the same order.
  void check();

  // What a NORM waits for: all other ranks that have one, at the action before theirs.
  void add_requirements(Place norm, std::vector<Place>& required) const;

 private:
  void check_rank(int rank);
  void compare(int first, int rank);

  Check& check_;
  std::vector<std::vector<Place>> norms_;  // of each rank, in order
};

}  // namespace millrace::internal
