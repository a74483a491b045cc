// Regroup: what a recorded run would have taken with other messages for its gradients. Changes a
// recording in place of its reductions; used by proposals. Pure functions.
//
// Source: Hu et al., dPRO, MLSys 2022, arXiv:2205.02473, tensor fusion on the replayed graph.
#pragma once

#include <vector>

#include "millrace/replay/fusion.h"
#include "millrace/replay/recording.h"
#include "millrace/sim/simulate.h"

namespace millrace {

// Seconds of a reduction: fixed_s + byte_s x bytes of its vector.
struct ReductionLine {
  double fixed_s = 0;
  double byte_s = 0;
  int num_sizes = 0;  // that it was fitted to; 1: fixed_s is the cluster's latency
  double seconds(double bytes) const { return fixed_s + byte_s * bytes; }
};

// Of the reductions of a stage's gradients: the line through the medians of each size with the
// least relative squares, neither part negative.
ReductionLine fit_reductions(const Recording& recording, int stage);

// When the stage's gradients become ready, from the last layer to the first: seconds from the start
// of an update's last backward (or W), on the slowest replica. As the run asked for them, where it
// asked for each piece by itself; else by the pieces' shares of the recorded backward.
struct Readiness {
  std::vector<ReadyTensor> tensors;
  bool recorded = false;
};
Readiness readiness_of(const Recording& recording, int stage,
                       const std::vector<GradientPiece>& pieces);

// The recording with these messages for every update of the stage, each lasting what `line` says:
// asked for as its last tensor becomes ready, awaited at REDUCE. An update whose backward the
// recording does not hold on every replica stays as it is.
Recording regroup(Recording recording, int stage, const Readiness& readiness,
                  const std::vector<FusedMessage>& messages, const ReductionLine& line);

}  // namespace millrace
