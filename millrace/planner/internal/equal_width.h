// The planner of PipeDream-2BW as a search over numbers: stages of consecutive layers, all of one
// width. builtin/pipedream_2bw.cc puts names to its answer. Pure functions.
//
// The family. Depth d and width w with d w workers at most; the layers in the profile's order, cut
// into d stages; stage s on devices s w .. s w + w - 1; each replica's share of the minibatch in m
// microbatches, where m is d times a power of two and a microbatch has a sample at least (or the
// request's own m, at least d - 1); all of it with or without recompute by stages.
// A minibatch of time T, forward F, W parameter and A stash bytes in a stage, a bytes at the cut
// before it, takes the longest of
//     T / (w speed), or (T + F) / (w speed) with recompute, of every stage,
//     an all-reduce of W over the stage's devices,
//     2 a / (w B) at every cut, B being the slowest link between a copy's neighbours there.
// A device needs, for x buffers of optimizer state,
//     (3 + x) W + (d - s) A / (w m), or with recompute (3 + x) W + ((d - s) a + A) / (w m).
#pragma once

#include <optional>
#include <vector>

#include "millrace/core/cluster.h"
#include "millrace/planner/internal/device_chain.h"

namespace millrace::internal {

struct EqualWidthProblem {
  const Line& line;  // of a whole minibatch
  const Cluster& cluster;
  int workers = 1;
  double samples = 1;  // of the minibatch
  int optimizer_buffers = 1;
  std::optional<int> depth{};
  std::optional<int> width{};
  std::optional<int> microbatches{};
  std::optional<bool> recompute{};
};

struct EqualWidthPlan {
  double minibatch_s = 0;
  double memory_bytes = 0;  // of the device that needs most
  int width = 1;
  int microbatches = 1;
  bool recompute = false;
  std::vector<int> ends;  // cut behind each stage
};

// Least time; among equals the fewest workers, then no recompute, then the fewest stages, then the
// fewest microbatches. Nothing where nothing fits.
std::optional<EqualWidthPlan> best_equal_width(const EqualWidthProblem& problem);

}  // namespace millrace::internal
