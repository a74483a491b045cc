#include "millrace/planner/internal/preferred.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

// A plan from one cut to a fixed last one on one component: its first group and
// what follows.
struct Suffix {
  int components = 0;  // of its level, used
  int workers = 0;
  int stages = 0;
  int cut = 0;  // where the first group ends
  int replicas = 1;
  const Suffix* inner = nullptr;  // what each component of the group runs; null on level 0
  const Suffix* rest = nullptr;
};

void append_cuts(const Suffix* suffix, std::vector<int>& cuts) {
  for (; suffix != nullptr; suffix = suffix->rest) {
    if (suffix->inner != nullptr) {
      append_cuts(suffix->inner, cuts);
    } else {
      cuts.push_back(suffix->cut);
    }
  }
}

std::vector<int> cuts_of(const Suffix& suffix) {
  std::vector<int> cuts;
  append_cuts(&suffix, cuts);
  return cuts;
}

bool goes_before(const Suffix& a, const Suffix& b) {
  const auto key = [](const Suffix& s) { return std::pair(s.workers, s.stages); };
  return key(a) != key(b) ? key(a) < key(b) : cuts_of(a) < cuts_of(b);
}

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
  Preference(const PartitionCosts& costs, InnerPlans& plans) : costs_(costs), plans_(plans) {}

  const Suffix& whole(double limit) {
    const Suffixes& row = suffixes(costs_.top(), costs_.cuts().whole(), limit, 0);
    const Suffix* best = least(row[index(costs_.start(), 0)]);
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
    for (auto first = inside.rbegin(); first != inside.rend(); ++first) {
      if (level < costs_.top() && !promised(level, *first, last, limit, outside)) {
        continue;
      }
      add_groups(row, {level, *first, last, limit, outside}, last, 0, nullptr);
      for (const int cut : inside) {
        if (cut <= *first || !cuts.nested(*first, cut) || costs_.cut(level, cut) > limit) {
          continue;
        }
        for (int rest = costs_.fewest_inner(); rest < costs_.num_states(); ++rest) {
          for (const Suffix* after : row[index(rest, cut)]) {
            add_groups(row, {level, *first, last, limit, outside}, cut, rest, after);
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
    for (int in = costs_.fewest_inner();
         in <= costs_.most_inner(place.level) && in + rest < costs_.num_states(); ++in) {
      const int state = in + rest;
      const int most = std::min(costs_.most(place.level, state), costs_.size(place.level) - behind);
      for (int q = costs_.least(state); q <= most; ++q) {
        if (plans_.group(place.level, in, place.first, cut, q, behind, place.outside) >
            place.limit) {
          continue;
        }
        Suffix suffix{q + behind, q, 1, cut, q, nullptr, after};
        if (place.level > 0) {
          const int outside = costs_.outside_below(place.level, q, behind, place.outside);
          const Suffixes& inner_row =
              suffixes(place.level - 1, cut, largest_dividend(place.limit, q), outside);
          suffix.inner = least(inner_row[index(in, place.first)]);
          MILLRACE_CHECK(suffix.inner != nullptr,
                         "an inner plan that its table promised is missing");
          suffix.workers = q * suffix.inner->workers;
          suffix.stages = suffix.inner->stages;
        }
        if (after != nullptr) {
          suffix.workers += after->workers;
          suffix.stages += after->stages;
        }
        insert(row[index(state, place.first)], suffix);
        if (place.level == 0) {
          break;  // more replicas only mean more workers
        }
      }
    }
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
