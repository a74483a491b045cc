// Checks of sharded stages in lowered lists, for validate_lowered.cc: weights are whole where they
// are used, every gradient goes into a REDUCE before the STEP, and replicas meet as often. Used on
// lists that may be damaged in any way.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "millrace/core/schedule.h"
#include "millrace/schedule/internal/places.h"

namespace millrace::internal {

class Shards {
 public:
  // `check` must have passed check_shape, `lowered` the check of its tables.
  Shards(Check& check, const LoweredSchedule& lowered);

  void check();
  // For a GATHER or REDUCE of a sharded stage: the action before each other replica's of the same
  // number.
  void add_requirements(Place place, std::vector<Place>& required) const;

 private:
  // Of one sharded stage on the rank at hand.
  struct State {
    bool whole = true;       // the rank has all of the weights
    int64_t unreduced = -1;  // place of a backward whose gradient no REDUCE took yet
    bool reduced = false;    // a REDUCE since the last STEP
  };

  bool is_meeting(const Action& action) const;
  void check_rank(std::size_t rank);
  void check_action(Place place, State& state);
  void compare(int stage);

  Check& check_;
  const LoweredSchedule& lowered_;
  std::map<std::pair<int, int>, std::vector<Place>> meetings_;  // by rank and stage, in order
};

}  // namespace millrace::internal
