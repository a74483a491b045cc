// Where each compute action stands, for the checks of validate.h. Used on lists that may be damaged
// in any way: what is out of range is reported and left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/action.h"
#include "millrace/schedule/validate.h"

namespace millrace::internal {

// Action `index` of `rank`; rank -1 for nowhere.
struct Place {
  int32_t rank = -1;
  uint32_t index = 0;
  bool known() const { return rank >= 0; }
};

// What the checks know about the lists and what they have found so far.
struct Check {
  const ActionLists& lists;
  int num_stages = 0;
  int64_t num_microbatches = 0;
  // holders[stage]: the ranks that may run it; every microbatch runs on one of them.
  std::vector<std::vector<int>> holders;
  bool forward_only = false;
  std::vector<Finding> findings;

  const Action& at(Place place) const {
    return lists[static_cast<std::size_t>(place.rank)][place.index];
  }
  // Adds a finding that begins with the action's coordinates.
  void add(Place place, const std::string& text);
};

// "F of stage 1, microbatch 3": an action in words.
std::string in_words(const Action& action);

// Whether stages, microbatches and placement can be checked at all: sane sizes, ranks in
// range, and not more cells than memory allows. Reports what cannot.
bool check_shape(Check& check);

// The places of F, B, I and W by stage and microbatch.
class Places {
 public:
  // Reads all usable compute actions, reports the others and those that stand twice. `Check` must
  // have passed check_shape.
  explicit Places(Check& check);

  Place at(ActionKind kind, int stage, int64_t microbatch) const {
    return cells_[cell(kind, stage, microbatch)];
  }
  // B, or else I: the action that makes the gradient for the stage before.
  Place gradient(int stage, int64_t microbatch) const;
  // B, or else W: the action that completes the weight gradient.
  Place last_backward(int stage, int64_t microbatch) const;
  // False for an action that was reported as out of range or misplaced.
  bool usable(Place place) const {
    return usable_[static_cast<std::size_t>(place.rank)][place.index];
  }

 private:
  std::size_t cell(ActionKind kind, int stage, int64_t microbatch) const;

  int64_t num_microbatches_;
  std::vector<Place> cells_;
  std::vector<std::vector<bool>> usable_;
};

// Whether an action's stage, microbatches and rank are within the check's bounds; reports it when
// not.
bool check_bounds(Check& check, Place place);

// Every forward is there once, with one backward (or I then W) after it on the same rank.
void check_pairs(Check& check, const Places& places);

}  // namespace millrace::internal
