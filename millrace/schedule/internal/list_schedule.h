// List scheduling: orders that come from a rule instead of from a published listing. At every
// instant each free rank starts the action of the highest score among those whose inputs have
// arrived. Used by schedules for the sizes whose order nobody has written down. A pure function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "millrace/core/action.h"

namespace millrace::internal {

// One way through all the stages, and the microbatches that take it, in this order on every stage.
struct Route {
  std::vector<int> ranks;  // one a stage
  std::vector<int64_t> microbatches;
};

// F and B, or F, I and W, of the microbatch at place `index` of its route.
using Score = std::function<double(ActionKind kind, int stage, int64_t index)>;

// Times are whole and at least 1; messages take none.
struct ListRule {
  Score score;
  // Most (stage, microbatch) pairs that each rank may hold from F to B (W where split): with so
  // many it starts no F. Empty: no bound.
  std::vector<int> caps{};
  bool split = false;  // I and W instead of B
  int64_t forward = 1;
  int64_t backward = 2;  // of B, or of I
  int64_t weight = 1;    // of W
};

struct ListScheduled {
  ActionLists lists;
  int64_t window = 0;  // when the last action ends
};

// Each stage of each route runs its microbatches in order, so that only its next F, B, I and W
// compete. Of equal scores the smaller stage starts first, of one stage B or I before F before W,
// and then the earlier route. Nothing when the caps leave every rank waiting. The cost is one call
// of the score for each stage of a rank whenever something ends there or arrives.
std::optional<ListScheduled> list_schedule(int num_ranks, const std::vector<Route>& routes,
                                           const ListRule& rule);

}  // namespace millrace::internal
