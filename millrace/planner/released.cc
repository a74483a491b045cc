#include "millrace/planner/internal/released.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/endings.h"

namespace millrace::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostTriedCuts = 400;

// The last stage of a plan that begins in a fixed cut, on exactly so many
// machines.
struct Best {
  double time_s = kNever;
  int cut = 0;  // where the last stage begins
  int machines = 1;
};

class Released {
 public:
  explicit Released(const ReleasedProblem& problem)
      : problem_(problem),
        cuts_(problem.cuts),
        bisect_(cuts_.ordered() && cuts_.count() - 1 > kMostTriedCuts) {
    for (int level = 0; level < top(); ++level) {
      std::vector<double> table(
          static_cast<std::size_t>(cuts_.count()) * static_cast<std::size_t>(cuts_.count()),
          kNever);
      for (int first = 0; first < cuts_.whole(); ++first) {
        const std::vector<Best> best = row(level, first);
        for (int last = first + 1; last < cuts_.count(); ++last) {
          table[pair(first, last)] = best[index(size(level), last)].time_s;
        }
      }
      tables_.push_back(std::move(table));
    }
  }

  std::optional<Partition> answer() {
    const Best best = row(top(), 0)[index(size(top()), cuts_.whole())];
    if (best.time_s == kNever) {
      return std::nullopt;
    }
    Partition partition;
    partition.minibatch_s = best.time_s;
    partition.conservative = bisect_;
    deal(top(), 0, cuts_.whole(), {0}, partition.stages);
    return partition;
  }

 private:
  int top() const { return static_cast<int>(problem_.network.levels.size()) - 1; }
  const Level& at(int level) const {
    return problem_.network.levels[static_cast<std::size_t>(level)];
  }
  int size(int level) const { return at(level).size; }
  std::size_t pair(int first, int last) const {
    return static_cast<std::size_t>(first) * static_cast<std::size_t>(cuts_.count()) +
           static_cast<std::size_t>(last);
  }
  std::size_t index(int machines, int cut) const {
    return static_cast<std::size_t>(cut) * static_cast<std::size_t>(most_size()) +
           static_cast<std::size_t>(machines);
  }
  int most_size() const {
    int most = 0;
    for (const Level& level : problem_.network.levels) {
      most = std::max(most, level.size);
    }
    return most + 1;
  }

  // The optimizer has no state of inputs alone.
  bool is_state(int cut) const {
    return cut == 0 || cuts_.parameter_bytes(0, cut) > 0 || cuts_.compute_s(0, cut) > 0 ||
           cut == cuts_.whole();
  }

  double inner_s(int level, int first, int last) const {
    return level == 0 ? cuts_.compute_s(first, last) / problem_.network.relative_speed
                      : tables_[static_cast<std::size_t>(level) - 1][pair(first, last)];
  }
  double stage_s(int level, int first, int last, int m, double divisor) const {
    const double exchange = 4.0 * (m - 1) *
                            static_cast<double>(cuts_.parameter_bytes(first, last)) /
                            (m * at(level).bandwidth_bytes_per_s) / divisor;
    return (inner_s(level, first, last) + exchange) / m;
  }

  // By machines and last cut: the best plan of the layers from `first` to
  // there.
  std::vector<Best> row(int level, int first) const {
    const double below = level == 0 ? 1.0 : static_cast<double>(size(level - 1));
    const int most = problem_.straight ? 1 : size(level);
    std::vector<Best> best(static_cast<std::size_t>(cuts_.count()) *
                           static_cast<std::size_t>(most_size()));
    std::vector<Endings> endings(static_cast<std::size_t>(size(level)) + 1);
    for (int last = first + 1; last < cuts_.count(); ++last) {
      if (!cuts_.nested(first, last) || !is_state(last)) {
        continue;
      }
      for (int m = 1; m <= most; ++m) {
        best[index(m, last)] = {stage_s(level, first, last, m, below), first, m};
      }
      if (bisect_) {
        end_by_bisection(level, last, most, endings, best);
        for (int m = 1; m <= size(level); ++m) {
          endings[static_cast<std::size_t>(m)].add({last, best[index(m, last)].time_s});
        }
      } else {
        end_by_trying(level, first, last, most, best);
      }
    }
    return best;
  }

  void end_by_trying(int level, int first, int last, int most, std::vector<Best>& best) const {
    for (const int cut : cuts_.inside(last)) {
      if (cut <= first || !cuts_.nested(first, cut) || !is_state(cut)) {
        continue;
      }
      for (int q = 1; q <= std::min(most, size(level) - 1); ++q) {
        const double last_s = stage_s(level, cut, last, q, 1.0);
        for (int m = q + 1; m <= size(level); ++m) {
          Best& here = best[index(m, last)];
          const double time_s = std::max(best[index(m - q, cut)].time_s, last_s);
          if (time_s < here.time_s) {
            here = {time_s, cut, q};
          }
        }
      }
    }
  }

  void end_by_bisection(int level, int last, int most, const std::vector<Endings>& endings,
                        std::vector<Best>& best) const {
    for (int q = 1; q <= std::min(most, size(level) - 1); ++q) {
      const auto last_s = [&](int cut) { return stage_s(level, cut, last, q, 1.0); };
      for (int m = q + 1; m <= size(level); ++m) {
        const Ending* ending = endings[static_cast<std::size_t>(m - q)].best(last_s);
        if (ending == nullptr) {
          continue;
        }
        Best& here = best[index(m, last)];
        const double time_s = std::max(ending->key, last_s(ending->cut));
        if (time_s < here.time_s) {
          here = {time_s, ending->cut, q};
        }
      }
    }
  }

  // Ranks of the plan between two cuts on all machines of `level`, in every
  // component that begins in one of `starts`.
  void deal(int level, int first, int last, const std::vector<int>& starts,
            std::vector<PartitionStage>& stages) const {
    const std::vector<Best> best = row(level, first);
    struct Group {
      int first;
      int last;
      int machines;
    };
    std::vector<Group> groups;
    for (int machines = size(level); last > first;) {
      const Best& stage = best[index(machines, last)];
      groups.push_back({stage.cut, last, stage.machines});
      machines -= stage.machines;
      last = stage.cut;
    }
    int next_machine = 0;
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      std::vector<int> used;
      for (const int start : starts) {
        for (int q = 0; q < group->machines; ++q) {
          used.push_back(start + (next_machine + q) * at(level).devices);
        }
      }
      next_machine += group->machines;
      if (level == 0) {
        stages.push_back({group->first, group->last, used});
      } else {
        deal(level - 1, group->first, group->last, used, stages);
      }
    }
  }

  const ReleasedProblem& problem_;
  const Cuts& cuts_;
  const bool bisect_;
  std::vector<std::vector<double>> tables_;  // of each level but the top one
};

}  // namespace

std::optional<Partition> released_partition(const ReleasedProblem& problem) {
  return Released(problem).answer();
}

}  // namespace millrace::internal
