// Why a job of several processes failed: of all that the launcher saw, the one thing that came
// first, as the one paragraph that a person reads. Pure; used by launch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/job_board.h"

namespace millrace::cli {

// What the launcher knows of one process.
struct ProcessEnd {
  enum class How {
    kRunning,
    kStopped,  // running, but stopped by a signal
    kStatus,   // ended by itself, `value` is its status
    kSignal,   // killed, `value` is the signal
  };

  int process = 0;
  int pid = 0;
  std::string host;
  How how = How::kRunning;
  int value = 0;
  int order = 0;                 // in which the launcher saw the ends
  bool ended_by_us = false;      // the launcher sent it a signal to end before
  bool by_ssh = false;           // `pid` is that of the ssh client
  bool after_a_failure = false;  // another had told of an own failure when the end was seen

  // Off the board, as far as the process told.
  JobPhase phase = JobPhase::kStarting;
  std::optional<std::pair<int, int>> ranks;
  std::optional<int64_t> step;
  std::string stages;
  std::optional<JobFailure> failure;
};

// 128 plus a signal that asks a program to end: what a run returns that drained and saved.
bool is_drained_status(int status);
// Not running, and neither ended well, nor drained, nor ended by us.
bool ended_badly(const ProcessEnd& end);

// "process 2 (pid 4711, ranks 4 to 5, host node1, stages 1 and 3 of 4)"
std::string describe(const ProcessEnd& end);

// The first cause, in this order; nothing when none of them is there:
// 1. a process killed by a signal (SIGABRT only if nobody had told of a failure before: it is how a
//    program falls over after one),
// 2. the first error that some process told and that is not about waiting or a lost peer,
// 3. a process that is stopped while others waited for it in vain,
// 4. a process that ended with a status other than 0 and told nothing,
// 5. the first wait that reached its deadline, 6. the first lost peer.
// The error has the code and coordinates of what happened; a kill is kPeerLost.
std::optional<Error> first_cause(const std::vector<ProcessEnd>& ends);

}  // namespace millrace::cli
