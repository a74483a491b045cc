// The global data-flow graph of a run and its replay: a recording's actions, messages and
// reductions joined by what each waits for, executed once more in virtual time. Deterministic; no
// threads.
//
// Nodes: every action of every rank (cut at its asks), every message, every reduction. Edges: the
// order on a rank, with the recorded gap; send -> message -> receive, with the link's latency;
// members -> reduction -> whoever awaits it. Queues: one a rank; one a link, which is a pair of
// ranks of one process, or of processes, and a direction; one for the reductions of a stage that go
// on beside its ranks. A queue takes what is ready first.
//
// Source: Hu et al., dPRO, MLSys 2022, arXiv:2205.02473, global DFG and replayer: a node starts at
// max(ready, its device's time). Queues without its priorities: a rank's order is recorded.
#pragma once

#include <string>
#include <vector>

#include "millrace/replay/recording.h"

namespace millrace {

enum class PathKind { kCompute, kUpdate, kMessage, kReduction, kOverhead };
const char* to_string(PathKind kind);  // "compute", "update", "message", "reduction", "overhead"

// A stretch of the critical path. Stretches follow one another without a hole.
struct PathPart {
  PathKind kind = PathKind::kCompute;
  std::string where;  // "rank 1", "link 0>1", "stage 0"
  std::string what;   // an action's text, or what carries it
  double start_s = 0;
  double end_s = 0;
};

struct Replay {
  double step_s = 0;
  double window_s = 0;         // first start to last end
  std::vector<PathPart> path;  // what the last end waited for, from the first start on
  Trace trace;                 // source "simulated"
};

// Updates of the first stage that a recording has, and how many steps each applies.
struct Updates {
  int64_t count = 0;
  int64_t steps_each = 1;
};
Updates updates_of(const Recording& recording, const Trace& trace);

// The recording without what began before its first stage's last `most` updates.
Recording last_updates(Recording recording, int64_t most);

// Throws Error(kBadFile) where a trace contradicts itself, so that actions wait for each other in a
// ring.
Replay replay(const Recording& recording, int64_t steps_each);

}  // namespace millrace
