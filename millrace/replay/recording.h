// Recording: a run's trace taken apart into what each action, message and reduction takes by
// itself, without the waits for one another. Made from an aligned trace; what-if questions and
// proposals change it; graph.h puts it together again. A plain value.
//
// Source: Hu et al., dPRO, MLSys 2022, arXiv:2205.02473, the global data-flow graph: durations of
// operators and transfers and the gaps between them, means over steps there, as they were here, or
// medians. That a transfer's queueing is taken off, and that a receive which waited for nobody says
// only by when its message was there, is our reconstruction.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/replay/matches.h"

namespace millrace {

// A reduction that an action asks for while it goes on.
struct Ask {
  double after_s = 0;  // of the action's own time, since its start or the ask before
  int reduction = 0;
};

// One action of a rank. It begins gap_s after the rank's last one, goes on to its asks, waits for
// what it awaits, then takes own_s.
struct RecordedAction {
  Action action;
  double start_s = 0;  // as recorded, by the first process's clock
  double end_s = 0;
  double gap_s = 0;
  double own_s = 0;
  std::vector<Ask> asks;
  std::vector<int> awaits;  // reductions
  int message = -1;         // sent (from its start on) or awaited here
  int64_t update = 0;       // of its stage on this rank, from 0
  int ordinal = 0;          // among the update's actions of its kind and peer

  double total_s() const;  // asks and own
};

struct RecordedMessage {
  int from = 0;  // ranks
  int to = 0;
  int64_t bytes = 0;
  // The link carries one message at a time for wire_s; it arrives latency_s later. Not observed,
  // and then what others like it took: the receiver came when the message was there.
  double wire_s = 0;
  double latency_s = 0;
  bool observed = false;
  int group = 0;  // of messages alike, for medians
};

struct RecordedReduction {
  int stage = 0;  // -1: the norm over all ranks
  std::vector<int> ranks;
  int64_t bytes = 0;     // moved by a member
  bool beside = false;   // those of a stage one after another; others when all have come
  double own_s = 0;      // from when the last member came and the one before it ended
  double latency_s = 0;  // of that, what no bandwidth shortens
  int number = 0;        // among its update's

  // Of the vector that is summed.
  double vector_bytes() const;
};

struct Recording {
  std::vector<int> ranks;                            // world ranks, ascending
  std::vector<int> processes;                        // of each
  std::vector<std::vector<RecordedAction>> actions;  // of each
  std::vector<RecordedMessage> messages;
  std::vector<RecordedReduction> reductions;
  int num_alone = 0;  // sends and receives without their other end
};

// `trace` is aligned, `matches` are its own. `cluster` says the latency of links and reductions;
// null: what messages of two sizes say, else 0.
Recording take_apart(const Trace& trace, const Matches& matches, const Cluster* cluster);

// The same with every duration and gap replaced by the median over its like: actions of a rank by
// kind, stage, peer and place within an update; messages by their ends, direction and bytes;
// reductions by stage, place within an update and bytes.
Recording typical(Recording recording);

double median(std::vector<double> values);  // 0 of none; the upper of two middles

}  // namespace millrace
