#include "millrace/planner/internal/preferred.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/line_suffixes.h"
#include "millrace/planner/internal/suffix.h"

namespace millrace::internal {
namespace {

// The largest double whose quotient by `divisor` is at most `limit`.
double largest_dividend(double limit, int divisor) {
  double x = limit * divisor;
  while (x / divisor > limit) {
    x = std::nextafter(x, 0.0);
  }
  for (double next = std::nextafter(x, PartitionCosts::kNever);
       next / divisor <= limit && next < PartitionCosts::kNever;
       next = std::nextafter(x, PartitionCosts::kNever)) {
    x = next;
  }
  return x;
}

class Preference {
 public:
  Preference(const PartitionCosts& costs, InnerPlans& plans)
      : costs_(costs), plans_(plans), by_line_(LineSuffixes::applies(costs)) {}

  const Suffix& whole(double limit) {
    count_before(limit);
    const Suffix* best =
        preferred(costs_.top(), costs_.start(), 0, costs_.cuts().whole(), limit, 0);
    MILLRACE_CHECK(best != nullptr, "no partition attains the least time");
    return *best;
  }

 private:
  // By state and first cut: those of which none has fewer components and goes
  // before as well.
  using Suffixes = std::vector<std::vector<const Suffix*>>;

  std::size_t index(int state, int cut) const {
    return static_cast<std::size_t>(cut) * static_cast<std::size_t>(costs_.num_states()) +
           static_cast<std::size_t>(state);
  }

  static const Suffix* least(const std::vector<const Suffix*>& suffixes) {
    const Suffix* best = nullptr;
    for (const Suffix* suffix : suffixes) {
      if (best == nullptr || goes_before(*suffix, *best) ||
          (!goes_before(*best, *suffix) && suffix->components < best->components)) {
        best = suffix;
      }
    }
    return best;
  }

  // Null when there is none.
  const Suffix* preferred(int level, int state, int first, int last, double limit, int outside) {
    if (level == 0 && by_line_) {
      const auto line = lines_.try_emplace(std::pair(last, limit), costs_, last, limit).first;
      return line->second.at(first);
    }
    return least(suffixes(level, last, limit, outside)[index(state, first)]);
  }

  // Components of `level` that the group needs at least, whatever is behind it; more than there
  // are when none are enough.
  int fewest(int level, int first, int cut, double limit, int outside) {
    const int size = costs_.size(level);
    int least = size + 1;
    for (int in = costs_.fewest_inner(); in <= costs_.most_inner(level); ++in) {
      int q = 1;
      const double alone_s = plans_.group(level, in, first, cut, 1, 0, outside);
      if (alone_s > limit && !costs_.with_memory()) {
        // As Reach::fewest: q components take at least the time of one over q.
        q = static_cast<int>(std::min(alone_s / limit, static_cast<double>(size))) - 1;
        q = std::max(q, 2);
      }
      while (q < least && plans_.group(level, in, first, cut, q, 0, outside) > limit) {
        ++q;
      }
      least = std::min(least, q);
    }
    return least;
  }

  // Components of the outermost level that the layers up to each cut need at least.
  void count_before(double limit) {
    const Cuts& cuts = costs_.cuts();
    const int top = costs_.top();
    before_.assign(static_cast<std::size_t>(cuts.count()), costs_.size(top) + 1);
    before_[0] = 0;
    for (int first = 0; first < cuts.whole(); ++first) {
      const int so_far = before_[static_cast<std::size_t>(first)];
      if (so_far > costs_.size(top) || (first > 0 && costs_.cut(top, first) > limit)) {
        continue;
      }
      for (int cut = first + 1; cut < cuts.count(); ++cut) {
        if (!cuts.nested(first, cut)) {
          continue;
        }
        const int q = fewest(top, first, cut, limit, 0);
        if (q > costs_.size(top) && cuts.ordered()) {
          break;  // no longer group either
        }
        int& least = before_[static_cast<std::size_t>(cut)];
        least = std::min(least, so_far + q);
      }
    }
  }

  // All that end in `last`, no term above `limit`, in one component of the
  // level above `level`.
  const Suffixes& suffixes(int level, int last, double limit, int outside) {
    const auto key = std::tuple(level, last, limit, outside);
    if (const auto found = rows_.find(key); found != rows_.end()) {
      return found->second;
    }
    const Cuts& cuts = costs_.cuts();
    Suffixes row(index(0, last + 1));
    const std::vector<int>& inside = cuts.inside(last);
    int furthest = last;  // where cuts are ordered, a longer first group is above the limit
    for (auto first = inside.rbegin(); first != inside.rend(); ++first) {
      if (level < costs_.top() && !promised(level, *first, last, limit, outside)) {
        if (cuts.ordered()) {
          break;  // an earlier beginning only adds to it
        }
        continue;
      }
      while (cuts.ordered() && furthest > *first &&
             fewest(level, *first, furthest, limit, outside) > costs_.size(level)) {
        --furthest;
      }
      const Place place{level, *first, last, limit, outside};
      if (furthest == last) {
        add_groups(row, place, last, 0, nullptr);
      }
      for (auto at = std::upper_bound(inside.begin(), inside.end(), *first);
           at != inside.end() && *at <= furthest; ++at) {
        const int cut = *at;
        if (!cuts.nested(*first, cut) || costs_.cut(level, cut) > limit) {
          continue;
        }
        for (int rest = costs_.fewest_inner(); rest < costs_.num_states(); ++rest) {
          for (const Suffix* after : row[index(rest, cut)]) {
            add_groups(row, place, cut, rest, after);
          }
        }
      }
    }
    return rows_.emplace(key, std::move(row)).first->second;
  }

  // Whether the table has any plan within the limit.
  bool promised(int level, int first, int last, double limit, int outside) {
    const InnerPlans::Table& table = plans_.table(level, outside);
    for (int state = 0; state < costs_.num_states(); ++state) {
      if (table.at(state, first, last) <= limit) {
        return true;
      }
    }
    return false;
  }

  struct Place {
    int level;
    int first;
    int last;
    double limit;
    int outside;
  };

  // Every group from place.first to `cut` before the suffix `after`, which may
  // be none.
  void add_groups(Suffixes& row, const Place& place, int cut, int rest, const Suffix* after) {
    const int behind = after != nullptr ? after->components : 0;
    const int before =
        place.level == costs_.top() ? before_[static_cast<std::size_t>(place.first)] : 0;
    const int left = costs_.size(place.level) - behind - before;
    for (int in = costs_.fewest_inner();
         in <= costs_.most_inner(place.level) && in + rest < costs_.num_states(); ++in) {
      const int state = in + rest;
      std::vector<const Suffix*>& list = row[index(state, place.first)];
      const int most = std::min(costs_.most(place.level, state), left);
      for (int q = costs_.least(state); q <= most; ++q) {
        if (place.level > 0 && is_beaten(list, place, cut, q, after)) {
          continue;
        }
        if (plans_.group(place.level, in, place.first, cut, q, behind, place.outside) >
            place.limit) {
          continue;
        }
        Suffix suffix{q + behind, q, 1, cut, q, nullptr, after};
        if (place.level > 0) {
          const int outside = costs_.outside_below(place.level, q, behind, place.outside);
          suffix.inner = preferred(place.level - 1, in, place.first, cut,
                                   largest_dividend(place.limit, q), outside);
          MILLRACE_CHECK(suffix.inner != nullptr,
                         "an inner plan that its table promised is missing");
          suffix.workers = q * suffix.inner->workers;
          suffix.stages = suffix.inner->stages;
        }
        if (after != nullptr) {
          suffix.workers += after->workers;
          suffix.stages += after->stages;
        }
        insert(list, suffix);
        if (place.level == 0) {
          break;  // more replicas only mean more workers
        }
      }
    }
  }

  // Whether a suffix in the list has fewer workers than any inner plan of the group would leave,
  // on no more components: each worker computes for the limit at most.
  bool is_beaten(const std::vector<const Suffix*>& list, const Place& place, int cut, int q,
                 const Suffix* after) const {
    constexpr double kRounding = 1 - 1e-9;
    const double needed = costs_.compute_s(place.first, cut) / (place.limit * q) * kRounding;
    const double workers =
        q * std::max(1.0, std::ceil(needed)) + (after != nullptr ? after->workers : 0);
    const int components = q + (after != nullptr ? after->components : 0);
    return std::any_of(list.begin(), list.end(), [&](const Suffix* other) {
      return other->components <= components && other->workers < workers;
    });
  }

  void insert(std::vector<const Suffix*>& list, const Suffix& suffix) {
    for (const Suffix* other : list) {
      if (other->components <= suffix.components && !goes_before(suffix, *other)) {
        return;
      }
    }
    std::erase_if(list, [&](const Suffix* other) {
      return suffix.components <= other->components && !goes_before(*other, suffix);
    });
    list.push_back(&arena_.emplace_back(suffix));
  }

  const PartitionCosts& costs_;
  InnerPlans& plans_;
  const bool by_line_;
  std::map<std::pair<int, double>, LineSuffixes> lines_;  // by last cut and limit
  std::vector<int> before_;                               // by cut, see count_before
  std::deque<Suffix> arena_;
  std::map<std::tuple<int, int, double, int>, Suffixes> rows_;
};

// The ranks of a plan that runs in every component whose first device is in
// `starts`.
void deal(const Network& network, int level, int first, const Suffix* suffix,
          const std::vector<int>& starts, std::vector<PartitionStage>& stages) {
  int next = 0;  // component of this level
  for (; suffix != nullptr; suffix = suffix->rest) {
    const int devices = network.levels[static_cast<std::size_t>(level)].devices;
    std::vector<int> used;
    for (const int start : starts) {
      for (int q = 0; q < suffix->replicas; ++q) {
        used.push_back(start + (next + q) * devices);
      }
    }
    if (suffix->inner != nullptr) {
      deal(network, level - 1, first, suffix->inner, used, stages);
    } else {
      stages.push_back({first, suffix->cut, used});
    }
    next += suffix->replicas;
    first = suffix->cut;
  }
}

// Most memory over the stages of a plan in one component of `level` + 1.
double memory_of(const PartitionCosts& memory, int level, int first, const Suffix* suffix,
                 int outside) {
  double most_bytes = 0;
  for (; suffix != nullptr; suffix = suffix->rest) {
    const int after = suffix->rest != nullptr ? suffix->rest->components : 0;
    most_bytes = std::max(
        most_bytes, suffix->inner == nullptr
                        ? memory.stage(first, suffix->cut, suffix->replicas, after, outside)
                        : memory_of(memory, level - 1, first, suffix->inner,
                                    memory.outside_below(level, suffix->replicas, after, outside)));
    first = suffix->cut;
  }
  return most_bytes;
}

}  // namespace

Partition preferred_partition(const PartitionProblem& problem, const PartitionCosts& costs,
                              InnerPlans& plans, double limit_s) {
  Preference preference(costs, plans);
  const Suffix& whole = preference.whole(limit_s);
  Partition partition;
  deal(problem.network, costs.top(), 0, &whole, {0}, partition.stages);
  partition.memory_bytes =
      memory_of(PartitionCosts(problem, Aim::kMemory, false), costs.top(), 0, &whole, 0);
  return partition;
}

}  // namespace millrace::internal
