// Weight policies: which version of a stage's weights each action reads or makes. Pure functions
// that annotate action lists; the runtime and the simulator only obey the annotation.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/action.h"

namespace millrace {

// flush:  F and B read the version current at the step's start; STEP makes the next.
// stash:  F reads the newest; B the version its forward read; STEP makes newest + 1.
//         Source: PipeDream, SOSP'19, section 3.3.
// vertical_sync: F and B of a minibatch read, on every stage, the version that stage 0 read for it;
//         STEP makes newest + 1. Needs stages that update together. Same source and section.
// latest: F and B both read the newest: what stashing exists to avoid (used by `verify --break
// stash`).
struct PolicyEntry {
  std::string name;
  std::string text;
  bool needs_flush;
  // Annotates the lists of all ranks, which already hold their STEPs, in place.
  void (*annotate)(ActionLists&);
};

const std::vector<PolicyEntry>& policies();
// Throws Error(kInvalidArgument) with the nearest known name.
const PolicyEntry& find_policy(const std::string& name);

// Weight versions that must live at once on a rank: from a STEP that makes one to the last action
// that reads an older one; 1 when every update can be made in place. Computed from the annotation
// alone; of several stages on the rank, the one that needs most.
int peak_weight_versions(const ActionList& annotated);

}  // namespace millrace
