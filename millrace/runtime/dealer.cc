#include "millrace/runtime/dealer.h"

#include <algorithm>

namespace millrace {

std::vector<std::vector<int64_t>> microbatches_by_replica(const LoweredSchedule& lowered,
                                                          int stage) {
  std::vector<std::vector<int64_t>> blocks;
  for (const int rank : lowered.stage_ranks.at(static_cast<std::size_t>(stage))) {
    std::vector<int64_t>& block = blocks.emplace_back();
    for (const Action& action : lowered.ranks.at(static_cast<std::size_t>(rank))) {
      for (int64_t m = action.first;
           action.kind == ActionKind::kForward && action.stage == stage && m <= action.last; ++m) {
        block.push_back(m);
      }
    }
    std::sort(block.begin(), block.end());
  }
  return blocks;
}

}  // namespace millrace
