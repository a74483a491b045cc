// The updates that count a recording's steps: those of the first stage. Used by graph.cc,
// updates.cc.
#pragma once

#include <algorithm>

#include "millrace/replay/recording.h"

namespace millrace::internal {

inline bool ends_step(const RecordedAction& each) {
  return each.action.kind == ActionKind::kStep && each.action.stage == 0;
}

// The place of the first rank that holds the first stage; -1: none does.
inline int first_stage_rank(const Recording& recording) {
  for (std::size_t r = 0; r < recording.actions.size(); ++r) {
    const std::vector<RecordedAction>& actions = recording.actions[r];
    if (std::any_of(actions.begin(), actions.end(), ends_step)) {
      return static_cast<int>(r);
    }
  }
  return -1;
}

}  // namespace millrace::internal
