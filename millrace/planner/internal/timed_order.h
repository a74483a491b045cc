// Orders by rule in seconds: like the list scheduling of millrace/schedule, but every stage has its
// own times, messages take some, and a rank's stash is bounded in bytes. Fast enough to be asked a
// hundred thousand times; what it says of an order is close to the simulator, which has the last
// word. A pure function.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "millrace/core/action.h"

namespace millrace::internal {

// Stages one after another, each on one rank; a rank may hold any number of them.
struct TimedPipeline {
  int num_ranks = 1;
  int num_microbatches = 1;
  bool split = false;  // I and W instead of B
  std::vector<int> rank_of;
  std::vector<std::array<double, 3>> seconds;  // F, B (or I), W of each stage
  std::vector<double> message_s;               // from each stage to the next, and back
  std::vector<double> stash_bytes;             // of each stage's microbatch, from F to B (or W)
  std::vector<double> stash_limit_bytes;       // of each rank
  std::vector<double> update_s;                // of each rank, after its last action
};

// A free rank starts what scores most among the actions whose inputs are there.
struct Preferences {
  std::array<double, 3> bias{};        // of F, B (or I), W
  std::array<double, 3> stage{};       // times the stage
  std::array<double, 3> microbatch{};  // times the microbatch
  std::vector<int> caps{};             // most microbatches of its stages in flight on each rank
};

struct TimedOrder {
  ActionLists lists;
  double seconds = 0;
};

// Each stage runs its microbatches in order. Nothing when the limits leave every rank waiting.
std::optional<TimedOrder> order_by(const TimedPipeline& pipeline, const Preferences& preferences);

}  // namespace millrace::internal
