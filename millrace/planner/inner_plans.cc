// Dynamic programming over suffixes: all plans that end in one cut, from it
// backwards. best[m] is of plans on exactly m components when memory counts
// (what is in flight depends on m), else on at most m; a table keeps the least
// over m, so that a plan of fewer layers never costs more.
//
// Where every cut holds all earlier ones, the end of the first group is found
// in a stack of ends that are not dominated: with a fixed number of components,
// a longer first group costs no less, so an end is worth keeping only when what
// follows it costs less. The search goes on from the one for the beginning
// before, or is a bisection where stages are counted. Elsewhere all nested cuts
// are tried.
#include "millrace/planner/internal/inner_plans.h"

#include <algorithm>

#include "millrace/planner/internal/endings.h"

namespace millrace::internal {
namespace {

constexpr double kNever = PartitionCosts::kNever;

}  // namespace

InnerPlans::Table::Table(int num_states, int num_cuts)
    : num_cuts_(static_cast<std::size_t>(num_cuts)),
      costs_(static_cast<std::size_t>(num_states) * num_cuts_ * num_cuts_, kNever) {}

// Fills one table, one last cut after another.
class InnerPlans::Filler {
 public:
  Filler(InnerPlans& plans, int level, int outside, Table& table)
      : costs_(plans.costs_),
        cuts_(plans.costs_.cuts()),
        level_(level),
        outside_(outside),
        size_(plans.costs_.size(level)),
        most_(plans.costs_.most(level, 0)),
        num_states_(plans.costs_.num_states()),
        table_(table),
        limit_s_(plans.limit_s_) {
    for (int above = level + 2; above <= costs_.top(); ++above) {
      limit_s_ *= costs_.size(above);  // a group's components share its time
    }
    // A stage's time does not depend on what is behind it, unless memory
    // counts.
    for (int q = 1; q <= size_ && level > 0; ++q) {
      for (int after = 0; after + q <= size_; ++after) {
        inner_.push_back(&plans.table(level - 1, costs_.outside_below(level, q, after, outside)));
      }
    }
  }

  void fill() {
    if (!cuts_.ordered() && num_states_ == 1) {
      read_groups_ahead();
    }
    for (int last = 1; last < cuts_.count(); ++last) {
      best_.assign(index(0, 0, cuts_.count()), kNever);
      keys_ = best_;
      if (cuts_.ordered()) {
        endings_.assign(index(0, 0, 1), Endings());
        crossings_.assign(static_cast<std::size_t>(size_ + 1) * static_cast<std::size_t>(size_ + 1),
                          0);
      }
      const std::vector<int>& inside = cuts_.inside(last);
      for (auto first = inside.rbegin(); first != inside.rend(); ++first) {
        one_group(*first, last);
        if (cuts_.ordered() && num_states_ == 1) {
          several_onward(*first);
        } else if (cuts_.ordered()) {
          several_by_bisection(*first);
        } else if (num_states_ == 1) {
          several_by_table(*first, last);
        } else {
          several_by_trying(*first, last);
        }
        finish(*first, last);
        if (cuts_.ordered() && !is_useful(*first, last)) {
          break;  // nor is any longer plan
        }
      }
    }
  }

 private:
  double& best(int state, int m, int cut) { return best_[index(state, m, cut)]; }
  double& key(int state, int m, int cut) { return keys_[index(state, m, cut)]; }
  std::size_t index(int state, int m, int cut) const {
    return (static_cast<std::size_t>(cut) * static_cast<std::size_t>(num_states_) +
            static_cast<std::size_t>(state)) *
               (static_cast<std::size_t>(size_) + 1) +
           static_cast<std::size_t>(m);
  }

  double group(int state, int first, int last, int q, int after) const {
    if (level_ == 0) {
      return costs_.stage(first, last, q, after, outside_);
    }
    // Row q of a triangle whose rows have size, size - 1, ... entries.
    const int row = (q - 1) * size_ - (q - 1) * (q - 2) / 2;
    return costs_.group(level_,
                        inner_.at(static_cast<std::size_t>(row) + static_cast<std::size_t>(after))
                            ->at(state, first, last),
                        first, last, q);
  }

  void one_group(int first, int last) {
    for (int state = costs_.fewest_inner(); state <= costs_.most_inner(level_); ++state) {
      for (int q = 1; q <= most_; ++q) {
        double& least = best(state, q, first);
        least = std::min(least, group(state, first, last, q, 0));
      }
    }
  }

  // Calls visit(state of the group, state after it, components after it, of the
  // group).
  template <typename Visit>
  void splits(const Visit& visit) const {
    for (int in = costs_.fewest_inner(); in <= costs_.most_inner(level_); ++in) {
      for (int rest = costs_.fewest_inner(); in + rest < num_states_; ++rest) {
        for (int m = 2; m <= size_; ++m) {
          for (int q = 1; q <= std::min(most_, m - 1); ++q) {
            visit(in, rest, m - q, q);
          }
        }
      }
    }
  }

  // Where stages are not counted, a group costs no less with one more layer before it, so each
  // search goes on from where the one for the beginning before this ended.
  void several_onward(int first) {
    for (int after = 1; after < size_; ++after) {
      const Endings& endings = endings_[index(0, after, 0)];
      for (int q = 1; q <= std::min(most_, size_ - after); ++q) {
        const auto cost = [&](int cut) { return group(0, first, cut, q, after); };
        std::size_t& crossing =
            crossings_[static_cast<std::size_t>(after) * static_cast<std::size_t>(size_ + 1) +
                       static_cast<std::size_t>(q)];
        if (const Ending* ending = endings.best_onward(cost, crossing)) {
          double& least = best(0, after + q, first);
          least = std::min(least, std::max(ending->key, cost(ending->cut)));
        }
      }
    }
  }

  void several_by_bisection(int first) {
    splits([&](int in, int rest, int after, int q) {
      const auto cost = [&](int cut) { return group(in, first, cut, q, after); };
      const Endings& endings = endings_[index(rest, after, 0)];
      if (const Ending* ending = endings.best(cost)) {
        double& least = best(in + rest, after + q, first);
        least = std::min(least, std::max(ending->key, cost(ending->cut)));
      }
    });
  }

  void several_by_trying(int first, int last) {
    for (const int cut : cuts_.inside(last)) {
      if (cut <= first || !cuts_.nested(first, cut)) {
        continue;
      }
      splits([&](int in, int rest, int after, int q) {
        double& least = best(in + rest, after + q, first);
        if (const double behind = key(rest, after, cut); behind < least) {
          least = std::min(least, std::max(behind, group(in, first, cut, q, after)));
        }
      });
    }
  }

  // The same where stages are not counted, which is where time goes: a group's cost does not depend
  // on the last cut, so all are read from one table, in the order of the loop.
  void several_by_table(int first, int last) {
    double* own = &best(0, 0, first);
    for (const int cut : cuts_.inside(last)) {
      if (cut <= first || !cuts_.nested(first, cut)) {
        continue;
      }
      const double* behind = &key(0, 0, cut);
      const double* group = &groups_[group_index(first, cut)];
      for (int m = 2; m <= size_; ++m) {
        double least = own[m];
        for (int q = 1; q <= std::min(most_, m - 1); ++q) {
          least = std::min(least, std::max(behind[m - q], group[slot(q, m - q)]));
        }
        own[m] = least;
      }
    }
  }

  // Without memory a group's cost is the same whatever is behind it.
  int slot(int q, int after) const {
    return costs_.with_memory() ? (q - 1) * size_ + after : q - 1;
  }
  std::size_t group_index(int first, int cut) const {
    const int slots = costs_.with_memory() ? size_ * size_ : size_;
    return (static_cast<std::size_t>(first) * static_cast<std::size_t>(cuts_.count()) +
            static_cast<std::size_t>(cut)) *
           static_cast<std::size_t>(slots);
  }

  void read_groups_ahead() {
    groups_.assign(group_index(cuts_.count(), 0), kNever);
    for (int cut = 1; cut < cuts_.count(); ++cut) {
      for (const int first : cuts_.inside(cut)) {
        double* row = &groups_[group_index(first, cut)];
        for (int q = 1; q <= std::min(most_, size_); ++q) {
          for (int after = costs_.with_memory() ? 1 : 0;
               after <= (costs_.with_memory() ? size_ - q : 0); ++after) {
            row[slot(q, after)] = group(0, first, cut, q, after);
          }
        }
      }
    }
  }

  void finish(int first, int last) {
    const double cut = costs_.cut(level_, first);
    for (int state = 0; state < num_states_; ++state) {
      double least = kNever;
      for (int m = 1; m <= size_; ++m) {
        double& here = best(state, m, first);
        least = std::min(least, here);
        if (!costs_.with_memory()) {
          here = least;
        }
        key(state, m, first) = std::max(here, cut);
        if (cuts_.ordered() && here < kNever) {
          endings_[index(state, m, 0)].add({first, key(state, m, first)});
        }
      }
      table_.at(state, first, last) = least;
    }
  }

  // Whether some number of components of the level above keeps a group of these within the limit.
  // Fewer exchange less, so the fewest that compute fast enough tell; rounding may let more pass.
  bool is_useful(int first, int last) const {
    constexpr double kRounding = 1e-9;
    if (limit_s_ == kNever) {
      return true;
    }
    for (int state = 0; state < num_states_; ++state) {
      const double inner_s = table_.at(state, first, last);
      const double share = inner_s / limit_s_ * (1 - kRounding);
      if (share > costs_.size(level_ + 1)) {
        continue;
      }
      const int fewest = std::max(1, static_cast<int>(share));
      if (costs_.group(level_ + 1, 0.0, first, last, fewest) <= limit_s_ * (1 + kRounding)) {
        return true;
      }
    }
    return false;
  }

  const PartitionCosts& costs_;
  const Cuts& cuts_;
  const int level_;
  const int outside_;
  const int size_;
  const int most_;
  const int num_states_;
  Table& table_;
  double limit_s_;  // of a group on the level above
  std::vector<const Table*> inner_;
  std::vector<double> best_;
  std::vector<double> keys_;
  std::vector<Endings> endings_;
  std::vector<std::size_t> crossings_;  // [components after, of the group], see several_onward
  std::vector<double> groups_;          // see several_by_table
};

const InnerPlans::Table& InnerPlans::table(int level, int outside) {
  const auto found = tables_.find({level, outside});
  if (found != tables_.end()) {
    return found->second;
  }
  Table table(costs_.num_states(), costs_.cuts().count());
  Filler(*this, level, outside, table).fill();
  return tables_.emplace(std::pair(level, outside), std::move(table)).first->second;
}

double steps_of_table(const Cuts& cuts, int size) {
  const double count = cuts.count();
  const double pairs = count * count / 2;
  return (cuts.ordered() ? pairs : pairs * count / 3) * size * (size + 1) / 2;
}

}  // namespace millrace::internal
