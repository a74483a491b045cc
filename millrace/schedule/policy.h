// Weight policies: which version of a stage's weights each action reads or makes. Pure functions
// that annotate action lists; the runtime and the simulator only obey the annotation.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/action.h"

namespace millrace {

// flush:  F and B read the version current at the step's start; STEP makes the next.
// stash:  F reads the newest; B the version its forward read; STEP makes newest + 1. A B of several
//         microbatches is cut where the versions that their forwards read differ.
//         Source: PipeDream, SOSP'19, section 3.3.
// vertical_sync: F and B of a minibatch read, on every stage, the version that stage 0 read for it;
//         STEP makes newest + 1. Needs stages that update together. Same source and section.
// double_buffer: F and B of update t (from 0) read version max(0, t-1) on every stage. Source:
//         PipeDream-2BW, ICML'21, section 3.1.
// vertical_newest: all F of a minibatch read, on every stage, the version that stage 0 read at its
//         first F; its B, the b-th (from 1), reads version max(0, b-v) on every stage, with v =
//         ceil(W/(N+1)) of W stages and N microbatches: the newest that all stages have made when
//         the last stage starts it. Source: TiMePReSt (FGCS 178, 2026); v counted by replay.
// latest: F and B both read the newest. Source: V-TiMePReSt (arXiv 2509.23241); also what stashing
//         exists to avoid (`verify --break stash`).
// blend:  F reads the newest; B a mix of the version its forward read and the newest:
//         S x stale + (1 - S) x newest, S = exp(-lambda x (newest - stale)). The annotation names
//         the stale version, for which a B is cut as under stash; LoweredSchedule::blend_lambda is
//         lambda. Source: I-TiMePReSt, same paper; the exponential is our reconstruction.
struct PolicyEntry {
  std::string name;
  std::string text;
  bool needs_flush;
  bool updates_together;     // all stages must update after the same minibatches
  bool backward_as_forward;  // a backward reads the version that its forward read
  // Annotates the lists of all ranks, which already hold their STEPs, in place, and cuts a B that
  // would read two versions.
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
