// Matches: which events of a run's trace belong together on several ranks: the send and the receive
// of a message, the members of a reduction. The first step from traces of single ranks to one graph
// of the run; alignment of clocks needs no more. Pure functions.
#pragma once

#include <vector>

#include "millrace/core/trace.h"

namespace millrace {

// Places in Trace::ranks, and in the events (or `beside`) of that rank.
struct EventPlace {
  int rank = 0;
  int event = 0;
  bool operator==(const EventPlace&) const = default;
};

struct MatchedMessage {
  EventPlace send;
  EventPlace receive;
};

// A reduction that no member leaves before all have come.
struct MatchedReduction {
  bool beside = false;                   // `members` are in the ranks' `beside`
  int number = 0;                        // among those beside of one update
  std::vector<EventPlace> members{};     // one a rank, ascending
  std::vector<EventPlace> awaited_by{};  // of those beside: each member's REDUCE
};

struct Matches {
  std::vector<MatchedMessage> messages;  // in the order of receives, rank by rank
  std::vector<MatchedReduction> reductions;
  int num_alone = 0;  // sends and receives whose other end is not in the trace
};

// `reduces`: REDUCE is a sum over all replicas of the stage; false for rules that exchange
// otherwise, whose REDUCE then meets nobody. NORM always meets. Messages of one sender, receiver,
// direction, stages and microbatch are matched in order; the n-th REDUCE of a stage on one replica
// meets the n-th on the others.
Matches match_events(const Trace& trace, bool reduces);

}  // namespace millrace
