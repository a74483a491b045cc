#include "millrace/sim/internal/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/sim/internal/run_list.h"

namespace millrace::internal {
namespace {

// The microbatches of each of a stage's replicas.
std::vector<std::vector<int64_t>> blocks_of(const LoweredSchedule& lowered, int stage) {
  std::vector<std::vector<int64_t>> blocks;
  for (const int rank : lowered.stage_ranks.at(static_cast<std::size_t>(stage))) {
    blocks.push_back(microbatches_of(lowered.ranks.at(static_cast<std::size_t>(rank)), stage));
  }
  return blocks;
}

bool makes_copies(const LoweredSchedule& lowered) {
  const std::vector<std::vector<int64_t>> blocks = blocks_of(lowered, 0);
  for (int stage = 1; stage < lowered.num_stages; ++stage) {
    if (blocks_of(lowered, stage) != blocks) {
      return false;
    }
  }
  for (std::size_t rank = 0; rank < lowered.rank_stages.size(); ++rank) {
    const std::vector<int>& stages = lowered.rank_stages[rank];
    const int number = static_cast<int>(rank);
    if (std::any_of(stages.begin(), stages.end(), [&](int stage) {
          return lowered.replica_of(number, stage) != lowered.replica_of(number, stages.front());
        })) {
      return false;
    }
  }
  return std::all_of(blocks.begin(), blocks.end(), [&blocks](const std::vector<int64_t>& block) {
    return block.size() == blocks.front().size();
  });
}

}  // namespace

Parts::Parts(const LoweredSchedule& lowered, int64_t num_steps)
    : num_parts_(num_steps * std::ssize(lowered.stage_ranks.at(0))),
      copy_of_rank_(lowered.ranks.size(), -1),
      own_(lowered.stage_ranks.at(0).size()) {
  if (!lowered.flush || !makes_copies(lowered)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("deal = \"on-demand\" needs a schedule with a flush and as many "
                            "replicas of every stage, each with microbatches of its own; schedule "
                            "{} here is not of that kind; set deal = \"fixed\", or a plan of one "
                            "stage",
                            lowered.name))
        .at_key("parallel.deal");
  }
  for (std::size_t rank = 0; rank < lowered.rank_stages.size(); ++rank) {
    if (!lowered.rank_stages[rank].empty()) {
      copy_of_rank_[rank] =
          lowered.replica_of(static_cast<int>(rank), lowered.rank_stages[rank].front());
    }
  }
}

std::optional<int64_t> Parts::step_of(int rank, int64_t turn) {
  std::vector<int64_t>& own = own_[static_cast<std::size_t>(copy_of(rank))];
  if (turn == std::ssize(own) && next_ < num_parts_) {
    own.push_back(next_++);
  }
  if (turn >= std::ssize(own)) {
    return std::nullopt;
  }
  return own[static_cast<std::size_t>(turn)] / std::ssize(own_);
}

}  // namespace millrace::internal
