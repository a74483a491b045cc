// A search over schedules: which layers make a stage, where stages stand and in which order their
// work runs, chosen together by simulated time under a memory limit. For models that no published
// order fits, say with a heavy last layer. Deterministic; no threads.
// The idea is that of the automated scheduler of "FlexPipe: A Flexible Programmable Pipeline
// Parallelism Framework for Efficient DNN Training" (Jiang et al., arXiv 2510.05112).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/core/cluster.h"
#include "millrace/core/plan.h"
#include "millrace/core/profile.h"
#include "millrace/core/schedule.h"

namespace millrace {

struct SearchRequest {
  const Profile& profile;  // of one microbatch
  const Cluster& cluster;  // at least `ranks` devices
  int ranks = 1;
  int microbatches = 1;      // of a step
  double memory_bytes = 0;   // most on any rank; 0: the cluster's
  int most_chunks = 4;       // stages a rank, where they are equally many
  bool split = true;         // also backwards in two halves
  bool use_builtins = true;  // builtins are candidates too
  double effort = 1;         // length of the local search, times the default of some seconds
  // Called now and then with what is being tried; may be empty.
  std::function<void(const std::string&)> progress{};
};

// The best that was found. With a flush always: all candidates take the same steps.
struct FoundSchedule {
  Schedule schedule;         // named "auto"
  Plan plan;                 // its layers and ranks; `schedule` is for the caller to fill in
  double step_s = 0;         // simulated
  std::string origin;        // "builtin zb-v", "10 stages, at first looped, ..."
  double one_f_one_b_s = 0;  // of 1f1b on the planner's stages; 0 where it does not fit
  std::string best_builtin;  // the fastest that fits into memory; may be empty
  double best_builtin_s = 0;
  int64_t tried = 0;
};

// Candidates: every builtin with a flush that offers the size, with 1 to most_chunks chunks on the
// planner's stages; then orders by rule over looped and there-and-back placements, from which a
// local search changes stages, places (also unequally many a rank), preferences and limits. Never
// slower than the best builtin. Throws Error(kInvalidArgument) for fewer layers than ranks or fewer
// devices, and Error(kUnsupported) when nothing fits into memory.
FoundSchedule search_schedule(const SearchRequest& request);

}  // namespace millrace
