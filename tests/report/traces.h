// Tiny traces with round numbers, for the tests of every page and picture.
#pragma once

#include <string>
#include <utility>

#include "millrace/core/plan.h"
#include "millrace/core/trace.h"

namespace millrace::test {

inline TraceEvent event(const std::string& action, double start_s, double end_s, double wait_s = 0,
                        int64_t bytes = 0) {
  return {parse_action(action), start_s, end_s, wait_s, bytes};
}

// Two stages, `num_steps` steps of one microbatch, 10 ms each, `scale` times slower: rank 0
// computes F in [0, 2], waits till 6, computes B till 9, updates till 10; rank 1 runs F and B from
// 2 to 6.
inline Trace two_ranks(const std::string& source, int num_steps, double scale = 1) {
  Trace trace;
  trace.source = source;
  trace.num_steps = num_steps;
  trace.step_s = 0.010 * scale;
  trace.window_s = trace.step_s * num_steps;
  RankTrace first;
  first.rank = 0;
  first.stages = {0};
  RankTrace second;
  second.rank = 1;
  second.stages = {1};
  const double ms = 1e-3 * scale;
  for (int k = 0; k < num_steps; ++k) {
    const std::string m = std::to_string(k);
    const double t = 10 * ms * k;
    first.events.push_back(event("0F" + m, t, t + 2 * ms));
    first.events.push_back(event("0RECV_B" + m + "<1", t + 2 * ms, t + 6 * ms, 4 * ms, 64));
    first.events.push_back(event("0B" + m, t + 6 * ms, t + 9 * ms));
    first.events.push_back(event("0STEP@" + std::to_string(k + 1), t + 9 * ms, t + 10 * ms));
    second.events.push_back(event("1F" + m, t + 2 * ms, t + 4 * ms));
    second.events.push_back(event("1B" + m, t + 4 * ms, t + 6 * ms));
    second.events.push_back(event("1STEP@" + std::to_string(k + 1), t + 6 * ms, t + 7 * ms));
  }
  first.compute_s = 5 * ms * num_steps;
  first.wait_s = 4 * ms * num_steps;
  first.update_s = second.update_s = ms * num_steps;
  second.compute_s = 4 * ms * num_steps;
  trace.ranks = {std::move(first), std::move(second)};
  return trace;
}

inline Plan two_stages() {
  Plan plan;
  plan.planner = "pipedream";
  plan.workers = 3;
  plan.stages = {{{"conv1", "pool1", "conv2"}, {0}}, {{"fc1"}, {1}}};
  plan.minibatch_s = 0.010;
  plan.one_worker_minibatch_s = 0.019;
  return plan;
}

}  // namespace millrace::test
