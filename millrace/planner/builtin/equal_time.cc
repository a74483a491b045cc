// GPipe's partition: stages (its cells) of nearly equal cost. Of all ways to cut the layers, in the
// profile's order, into the given number of stages, the one with the least variance of the stages'
// forward and backward seconds; among equals the earliest cuts. Stages and replicas are the
// request's (given_replicas); the paper knows no replicas, and they do not count in a stage's cost.
//
// Source: "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS
// 2019, section 2.2. The mean over stages is the same for every cut, so the least variance is the
// least sum of squares, which adds up over stages: dynamic programming over suffixes, O(N^2 S).
#include <limits>

#include "millrace/planner/internal/given_stages.h"

namespace millrace::builtin_planners {

Plan equal_time(const PlanRequest& request) {
  const std::vector<int> replicas = internal::given_replicas(request);
  const std::size_t num_layers = request.profile.layers.size();
  const std::size_t stages = replicas.size();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // least[s][i]: sum of squares of layers i.. in s stages; end[s][i]: where the first of them ends.
  std::vector<std::vector<double>> least(stages + 1, std::vector<double>(num_layers + 1, kNever));
  std::vector<std::vector<std::size_t>> end(stages + 1,
                                            std::vector<std::size_t>(num_layers + 1, 0));
  least[0][num_layers] = 0;
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t i = 0; i < num_layers; ++i) {
      double seconds = 0;
      for (std::size_t j = i + 1; j <= num_layers; ++j) {
        seconds += request.profile.layers[j - 1].compute_s();
        const double sum = seconds * seconds + least[s - 1][j];
        if (sum < least[s][i]) {
          least[s][i] = sum;
          end[s][i] = j;
        }
      }
    }
  }
  std::vector<int> ends;
  std::size_t layer = 0;
  for (std::size_t s = stages; s > 0; --s) {
    layer = end[s][layer];
    ends.push_back(static_cast<int>(layer));
  }
  return internal::plan_of_runs(request.profile, ends, replicas);
}

}  // namespace millrace::builtin_planners
