// How long links carried messages, from when these were sent and were there. Used by recording.cc.
#pragma once

#include <tuple>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/replay/recording.h"

namespace millrace::internal {

struct Flight {
  int message = 0;
  std::tuple<bool, int, int> link{};  // (within a process, from, to): ranks there, else processes
  double sent_s = 0;
  double there_s = 0;  // where the message was observed: when it arrived; else it did before
};

// Writes wire_s and latency_s of all messages. A link carries one message at a time, in the order
// of sending. Of a message that was not observed: the median of its group, else of its link per
// byte, else 0, and never longer than until it was there.
void time_flights(const std::vector<Flight>& flights, const Cluster* cluster,
                  std::vector<RecordedMessage>& messages);

}  // namespace millrace::internal
