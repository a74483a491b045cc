#include "millrace/core/world_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/error.h"

namespace millrace {
namespace {

void check_sizes(int num_ranks, int num_processes) {
  if (num_processes < 1 || num_ranks < num_processes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected at least one rank for each process, found {} ranks and {} "
                            "processes; use more workers (-n) or fewer --processes",
                            num_ranks, num_processes));
  }
}

// The first rank of a process; for num_processes, the number of ranks.
int first_rank(int num_ranks, int num_processes, int process) {
  return process * (num_ranks / num_processes) + std::min(process, num_ranks % num_processes);
}

}  // namespace

std::vector<int> ranks_of_process(int num_ranks, int num_processes, int process) {
  check_sizes(num_ranks, num_processes);
  MILLRACE_CHECK(process >= 0 && process < num_processes);
  const int first = first_rank(num_ranks, num_processes, process);
  std::vector<int> ranks(first_rank(num_ranks, num_processes, process + 1) - first);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

int process_of_rank(int rank, int num_ranks, int num_processes) {
  check_sizes(num_ranks, num_processes);
  MILLRACE_CHECK(rank >= 0 && rank < num_ranks);
  const int small = num_ranks / num_processes;
  const int num_large = num_ranks % num_processes;
  const int in_large = num_large * (small + 1);
  return rank < in_large ? rank / (small + 1) : num_large + (rank - in_large) / small;
}

}  // namespace millrace
