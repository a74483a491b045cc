// Two passes. The first finds the least time T by dynamic programming over suffixes of the chain.
// The second finds, among the partitions no term of which exceeds T, the one that the tie rule
// prefers. Ties cannot be broken inside the first pass: a slower suffix on fewer workers may hide
// behind a slower prefix, so the best whole is not made of best parts. Once T is known, workers and
// stages simply add up.
#include "millrace/planner/internal/partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is left to place: with a fixed number of stages state k means "k + 1 stages left"; with a
// free number there is one state, which follows itself and may always end.
class Shape {
 public:
  explicit Shape(const ChainProblem& problem)
      : problem_(problem), free_(!problem.stages.has_value()) {}

  int num_states() const { return free_ ? 1 : *problem_.stages; }
  int start() const { return num_states() - 1; }
  bool may_end(int state) const { return free_ || state == 0; }
  bool may_go_on(int state) const { return free_ || state > 0; }
  int next(int state) const { return free_ ? state : state - 1; }
  // Replica numbers from `least` to `most` that the state's first stage may have.
  int least(int state) const { return problem_.replicas.empty() ? 1 : given(state); }
  int most(int state) const { return problem_.replicas.empty() ? problem_.workers : given(state); }

 private:
  int given(int state) const {
    return problem_.replicas.size() == 1 ? problem_.replicas[0]
                                         : problem_.replicas[start() - state];
  }

  const ChainProblem& problem_;
  const bool free_;
};

// Sums over layers first..j for every j >= first, added up in layer order as the formula does.
struct Sums {
  std::vector<double> compute_s;
  std::vector<int64_t> parameter_bytes;

  explicit Sums(std::size_t n) : compute_s(n), parameter_bytes(n) {}

  void start_at(int first, const std::vector<ChainLayer>& layers) {
    double seconds = 0;
    int64_t bytes = 0;
    for (std::size_t j = first; j < layers.size(); ++j) {
      seconds += layers[j].compute_s;
      bytes += layers[j].parameter_bytes;
      compute_s[j] = seconds;
      parameter_bytes[j] = bytes;
    }
  }

  double stage(int j, int replicas, const FlatNetwork& network) const {
    return stage_s(compute_s[j], parameter_bytes[j], replicas, network);
  }
};

// A first stage that ends in layer `last`; `key` is the time of all that comes after: its cut and
// the best rest.
struct Ending {
  int last = 0;
  double key = 0;
};

// Endings in order of falling `last` towards the back, keys rising. An ending with a later `last`
// and no smaller key is dropped: the longer first stage costs no less.
class Endings {
 public:
  void add(Ending ending) {
    while (!entries_.empty() && entries_.back().key >= ending.key) {
      entries_.pop_back();
    }
    entries_.push_back(ending);
  }

  // min over endings of max(key, stage(last)): one falls where the other rises, so the best is at
  // the crossing.
  template <typename Stage>
  double best(const Stage& stage) const {
    const auto crossing = std::partition_point(
        entries_.begin(), entries_.end(), [&](const Ending& e) { return stage(e.last) >= e.key; });
    double least = kInfinity;
    if (crossing != entries_.end()) {
      least = crossing->key;
    }
    if (crossing != entries_.begin()) {
      least = std::min(least, stage(std::prev(crossing)->last));
    }
    return least;
  }

 private:
  std::vector<Ending> entries_;
};

// The least time. best[state][m]: layers i.. on at most m workers, for the present i.
double least_time(const ChainProblem& problem, const Shape& shape) {
  const int n = static_cast<int>(problem.layers.size());
  const int workers = problem.workers;
  std::vector<std::vector<double>> best(shape.num_states(),
                                        std::vector<double>(workers + 1, kInfinity));
  std::vector<std::vector<Endings>> endings(shape.num_states(), std::vector<Endings>(workers + 1));
  Sums sums(n);
  for (int i = n - 1; i >= 0; --i) {
    sums.start_at(i, problem.layers);
    if (i + 1 < n) {  // `best` still holds row i + 1: a first stage may now end in layer i
      const double cut = cut_s(problem.layers[i].output_bytes, problem.network);
      for (int k = 0; k < shape.num_states(); ++k) {
        for (int m = 1; m <= workers; ++m) {
          if (best[k][m] < kInfinity) {
            endings[k][m].add({i, std::max(best[k][m], cut)});
          }
        }
      }
    }
    for (int k = 0; k < shape.num_states(); ++k) {
      for (int m = 1; m <= workers; ++m) {
        double least = best[k][m - 1];  // always infinite at m = 0
        if (shape.may_end(k) && shape.least(k) <= m && m <= shape.most(k)) {
          least = std::min(least, sums.stage(n - 1, m, problem.network));
        }
        for (int q = shape.least(k); shape.may_go_on(k) && q <= std::min(shape.most(k), m - 1);
             ++q) {
          least = std::min(least, endings[shape.next(k)][m - q].best([&](int last) {
            return sums.stage(last, q, problem.network);
          }));
        }
        best[k][m] = least;
      }
    }
  }
  return best[shape.start()][workers];
}

// Fewest workers, then fewest stages, of a suffix; and its first stage, with the earliest end that
// attains them.
struct Rest {
  int workers = std::numeric_limits<int>::max();
  int stages = 0;
  ChainStage stage;
  bool reachable() const { return workers < std::numeric_limits<int>::max(); }
};

void improve(Rest& rest, int workers, int stages, ChainStage stage) {
  if (std::pair(workers, stages) < std::pair(rest.workers, rest.stages)) {
    rest = {workers, stages, stage};
  }
}

// The partition that the tie rule prefers among those whose every term is at most `limit_s`.
std::vector<ChainStage> preferred(const ChainProblem& problem, const Shape& shape, double limit_s) {
  const int n = static_cast<int>(problem.layers.size());
  std::vector<std::vector<Rest>> rests(shape.num_states(), std::vector<Rest>(n));
  Sums sums(n);
  for (int i = n - 1; i >= 0; --i) {
    sums.start_at(i, problem.layers);
    for (int k = 0; k < shape.num_states(); ++k) {
      Rest& rest = rests[k][i];
      int replicas = shape.least(k);  // fewest that will do; never fewer for a longer stage
      for (int j = i; j < n; ++j) {
        while (replicas <= shape.most(k) && sums.stage(j, replicas, problem.network) > limit_s) {
          ++replicas;
        }
        if (replicas > shape.most(k)) {
          break;
        }
        const ChainStage stage{i, j, replicas};
        if (j == n - 1) {
          if (shape.may_end(k)) {
            improve(rest, replicas, 1, stage);
          }
        } else if (shape.may_go_on(k) &&
                   cut_s(problem.layers[j].output_bytes, problem.network) <= limit_s) {
          const Rest& after = rests[shape.next(k)][j + 1];
          if (after.reachable()) {
            improve(rest, replicas + after.workers, 1 + after.stages, stage);
          }
        }
      }
    }
  }
  std::vector<ChainStage> stages;
  int state = shape.start();
  for (int i = 0; i < n;) {
    const Rest& rest = rests[state][i];
    MILLRACE_CHECK(rest.reachable(), "no partition attains the least time");
    stages.push_back(rest.stage);
    i = rest.stage.last + 1;
    if (i < n) {
      state = shape.next(state);
    }
  }
  return stages;
}

}  // namespace

ChainPartition best_partition(const ChainProblem& problem) {
  MILLRACE_CHECK(!problem.layers.empty() && problem.workers >= 1, "an empty partition problem");
  const Shape shape(problem);
  ChainPartition partition;
  partition.minibatch_s = least_time(problem, shape);
  MILLRACE_CHECK(partition.minibatch_s < kInfinity, "the restrictions leave no partition");
  partition.stages = preferred(problem, shape, partition.minibatch_s);
  return partition;
}

}  // namespace millrace::internal
