// Traces made by hand, for the tests of replay.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/core/trace.h"

namespace millrace::testing {

// Rank 0 in process 0, rank 1 in process 1, without events.
inline Trace two_processes() {
  Trace trace;
  trace.source = "measured";
  for (int rank = 0; rank < 2; ++rank) {
    RankTrace each;
    each.rank = rank;
    each.stages = {rank};
    each.process = rank;
    each.host = rank == 0 ? "one" : "two";
    trace.ranks.push_back(each);
  }
  return trace;
}

// Stage 0 on rank 0 sends forward, stage 1 on rank 1 answers, 400 times. The clock of rank 1 is
// ahead by the skew; delays are the least ones plus a jitter of up to so much.
struct PingPong {
  double skew_s = 0;
  double there_s = 0;
  double back_s = 0;
  double jitter_s = 0;
};

inline Trace ping_pong(const PingPong& config) {
  Trace trace = two_processes();
  const RandomKey key(7);
  double now_s = 1;
  for (int m = 0; m < 400; ++m) {
    const auto n = static_cast<uint64_t>(m);
    const auto add = [&](int rank, const std::string& action, double start_s, double end_s,
                         double wait_s) {
      const double skew_s = rank == 1 ? config.skew_s : 0;
      trace.ranks[static_cast<std::size_t>(rank)].events.push_back(
          {parse_action(action), start_s + skew_s, end_s + skew_s, wait_s, 1000});
    };
    const std::string number = std::to_string(m);
    const double sent_s = now_s;
    const double there_s = sent_s + config.there_s + config.jitter_s * key.uniform(2 * n);
    const double back_s = there_s + config.back_s + config.jitter_s * key.uniform(2 * n + 1);
    add(0, "0SEND_F" + number + ">1", sent_s, sent_s, 0);
    add(1, "1RECV_F" + number + "<0", sent_s, there_s, there_s - sent_s);
    add(1, "1SEND_B" + number + ">0", there_s, there_s, 0);
    add(0, "0RECV_B" + number + "<1", sent_s, back_s, back_s - sent_s);
    now_s = back_s + 1e-3;
  }
  return trace;
}

// Events of one rank, "ACTION start end [wait] [bytes]" each.
struct Line {
  std::string action;
  double start_s = 0;
  double end_s = 0;
  double wait_s = 0;
  int64_t bytes = 0;
};
inline std::vector<TraceEvent> events(std::initializer_list<Line> lines) {
  std::vector<TraceEvent> list;
  for (const Line& line : lines) {
    list.push_back({parse_action(line.action), line.start_s, line.end_s, line.wait_s, line.bytes});
  }
  return list;
}

}  // namespace millrace::testing
