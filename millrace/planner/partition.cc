// Three passes. First the least cost of every inner plan (InnerPlans). Then the
// least time T of the whole: bisection over all floating-point numbers, each
// asked by a dynamic program over suffixes for the fewest components whose plan
// has no term above it. Last, among the partitions no term of which exceeds T,
// the one that the tie rule prefers (preferred_partition). Ties cannot be
// broken while looking for T: a slower suffix on fewer workers may hide behind
// a slower prefix, so the best whole is not made of best parts. Once T is
// known, workers and stages simply add up.
//
// With memory, fewest components is still the right thing to keep of a suffix:
// the fewer workers stand behind a stage, the less it has in flight.
#include "millrace/planner/internal/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/inner_plans.h"
#include "millrace/planner/internal/preferred.h"

namespace millrace::internal {
namespace {

constexpr double kNever = PartitionCosts::kNever;
constexpr double kMost = std::numeric_limits<double>::max();
constexpr int kTooMany = std::numeric_limits<int>::max() / 2;
constexpr double kMostSteps = 1e9;  // for tables of inner plans, a few seconds

// Whether some partition has no term above a limit.
class Reach {
 public:
  Reach(const PartitionCosts& costs, InnerPlans& plans) : costs_(costs), plans_(plans) {}

  bool within(double limit) {
    largest_within_ = 0;
    least_beyond_ = kNever;
    const Cuts& cuts = costs_.cuts();
    const int states = costs_.num_states();
    fewest_.assign(static_cast<std::size_t>(states) * static_cast<std::size_t>(cuts.count()),
                   kTooMany);
    at(0, cuts.whole()) = 0;
    for (int first = cuts.whole() - 1; first >= 0; --first) {
      for (int last = first + 1; last < cuts.count(); ++last) {
        if (!cuts.nested(first, last) ||
            (last < cuts.whole() && beyond(costs_.cut(costs_.top(), last), limit))) {
          continue;
        }
        if (!extend(first, last, limit) && cuts.ordered()) {
          break;  // no number of components is enough, even less for longer
                  // groups
        }
      }
    }
    return at(costs_.start(), 0) <= costs_.size(costs_.top());
  }

  // Of all terms that the last answer looked at. Any limit from the one up to below the other has
  // that answer.
  double largest_within() const { return largest_within_; }
  double least_beyond() const { return least_beyond_; }

 private:
  bool beyond(double term, double limit) {
    if (term > limit) {
      least_beyond_ = std::min(least_beyond_, term);
      return true;
    }
    largest_within_ = std::max(largest_within_, term);
    return false;
  }

  int& at(int state, int cut) {
    return fewest_[static_cast<std::size_t>(cut) * static_cast<std::size_t>(costs_.num_states()) +
                   static_cast<std::size_t>(state)];
  }

  // Puts the group before every suffix that begins where it ends. False when no
  // number of components keeps it within the limit, not even with nothing
  // behind it.
  bool extend(int first, int last, double limit) {
    const int top = costs_.top();
    bool extended = false;
    for (int in = costs_.fewest_inner(); in <= costs_.most_inner(top); ++in) {
      for (int rest = 0; in + rest < costs_.num_states(); ++rest) {
        const int behind = at(rest, last);
        const int most = std::min(costs_.most(top, in + rest), costs_.size(top) - behind);
        const int q = fewest(in, first, last, {costs_.least(in + rest), most}, behind, limit);
        if (q <= most) {
          at(in + rest, first) = std::min(at(in + rest, first), q + behind);
          extended = true;
        }
      }
    }
    for (int in = costs_.fewest_inner(); !extended && in <= costs_.most_inner(top); ++in) {
      const int size = costs_.size(top);
      extended = fewest(in, first, last, {1, size}, 0, limit) <= size;
    }
    return extended;
  }

  // Fewest components, from..to, that keep a group within the limit; more than
  // `to` when none does.
  int fewest(int state, int first, int last, std::pair<int, int> from_to, int behind,
             double limit) {
    auto [q, to] = from_to;
    const int top = costs_.top();
    if (q == 1 && to > 1 && !costs_.with_memory()) {
      // One component exchanges nothing, and q of them take at least its time
      // over q. The quotient's rounding is less than the one that is taken off.
      const double alone = plans_.group(top, state, first, last, 1, behind, 0);
      if (beyond(alone, limit)) {
        q = static_cast<int>(std::min(alone / limit, static_cast<double>(to))) - 1;
        q = std::max(q, 2);
        // Those passed over take at least this.
        if (q > 2) {
          least_beyond_ =
              std::min(least_beyond_, std::max(alone / q, std::nextafter(limit, kNever)));
        }
      }
    }
    while (q <= to && beyond(plans_.group(top, state, first, last, q, behind, 0), limit)) {
      ++q;
    }
    return q;
  }

  const PartitionCosts& costs_;
  InnerPlans& plans_;
  std::vector<int> fewest_;
  double largest_within_ = 0;
  double least_beyond_ = kNever;
};

// The least limit up to `most` that is within reach: non-negative doubles are ordered as
// their bits are. Limits between two terms all have one answer, so each answer
// moves its end of the interval to the next term.
std::optional<double> least_limit(Reach& reach, double most) {
  if (!reach.within(most)) {
    return std::nullopt;
  }
  uint64_t low = 0;
  uint64_t high = std::bit_cast<uint64_t>(most);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (reach.within(std::bit_cast<double>(middle))) {
      high = std::bit_cast<uint64_t>(reach.largest_within());
    } else {
      low = std::min(high, std::bit_cast<uint64_t>(reach.least_beyond()));
    }
  }
  return std::bit_cast<double>(low);
}

// Limits to look below, one after the other: tables of inner plans for a low one are quickly made.
// None is below what the workers need when all of them only compute.
std::vector<double> limits_to_try(const PartitionCosts& costs) {
  std::vector<double> limits;
  const double one_worker_s = costs.compute_s(0, costs.cuts().whole());
  double workers = 1;
  for (int level = 0; level <= costs.top(); ++level) {
    workers *= costs.size(level);
  }
  if (costs.top() > 0 && costs.cuts().ordered()) {
    for (double s = 2 * one_worker_s / workers; s > 0 && s < one_worker_s; s *= 2) {
      limits.push_back(s);
    }
  }
  limits.push_back(kMost);
  return limits;
}

std::optional<Partition> search(const PartitionProblem& problem, bool coarse) {
  const PartitionCosts costs(problem, Aim::kTime, coarse);
  std::optional<InnerPlans> plans;
  std::optional<double> least_s;
  for (const double limit_s : limits_to_try(costs)) {
    plans.emplace(costs, limit_s == kMost ? kNever : limit_s);
    Reach reach(costs, *plans);
    least_s = least_limit(reach, limit_s);
    if (least_s) {
      break;
    }
  }
  if (!least_s) {
    return std::nullopt;
  }
  Partition partition = preferred_partition(problem, costs, *plans, *least_s);
  partition.minibatch_s = *least_s;
  partition.conservative = coarse;
  return partition;
}

// Numbers of workers that may stand behind a component of the level below the
// outermost one.
std::size_t num_outside(const PartitionProblem& problem, bool coarse) {
  const PartitionCosts costs(problem, Aim::kTime, coarse);
  const int size = costs.size(costs.top());
  std::vector<int> numbers;
  for (int q = 1; q <= size; ++q) {
    for (int after = 0; after + q <= size; ++after) {
      numbers.push_back(costs.outside_below(costs.top(), q, after, 0));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return static_cast<std::size_t>(std::unique(numbers.begin(), numbers.end()) - numbers.begin());
}

bool too_many_tables(const PartitionProblem& problem) {
  double steps = 0;
  for (std::size_t k = 0; k + 1 < problem.network.levels.size(); ++k) {
    steps += steps_of_table(problem.cuts, problem.network.levels[k].size);
  }
  return steps > 0 && steps * static_cast<double>(num_outside(problem, false)) > kMostSteps;
}

}  // namespace

std::optional<Partition> best_partition(const PartitionProblem& problem) {
  MILLRACE_CHECK(problem.network.levels.size() == 1 || problem.replicas.empty() ||
                     (problem.replicas.size() == 1 && problem.replicas[0] == 1),
                 "replicas on several levels");
  PartitionProblem free = problem;
  free.memory_bytes.reset();
  std::optional<Partition> partition = search(free, false);
  if (!partition || !problem.memory_bytes || partition->memory_bytes <= *problem.memory_bytes) {
    return partition;  // what is best without regard to memory, and fits, is
                       // best
  }
  return search(problem, too_many_tables(problem));
}

double least_memory_bytes(const PartitionProblem& problem) {
  const PartitionCosts costs(problem, Aim::kMemory, too_many_tables(problem));
  InnerPlans plans(costs);
  Reach reach(costs, plans);
  return least_limit(reach, kMost).value_or(kNever);
}

Plan plan_of(const Partition& partition, const Cuts& cuts, const Profile& profile) {
  Plan plan;
  for (const PartitionStage& part : partition.stages) {
    PlanStage stage;
    for (const int layer : cuts.layers(part.first_cut, part.last_cut)) {
      stage.layers.push_back(profile.layers[static_cast<std::size_t>(layer)].name);
    }
    stage.ranks = part.ranks;
    plan.stages.push_back(std::move(stage));
  }
  plan.objective_s = partition.minibatch_s;
  if (cuts.linear()) {
    plan.notes.push_back(
        fmt::format("the layer graph has more than {} cuts: only those along the "
                    "profile's order were searched",
                    kMostCuts));
  }
  return plan;
}

}  // namespace millrace::internal
