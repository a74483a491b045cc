// The planner against enumeration of its whole family: chains and small layer graphs, one and two
// network levels, with and without memory. Everything is written out anew from the paper's
// statement: cuts as bit sets, the formula, the tie rule, what is in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iostream>
#include <limits>
#include <random>
#include <set>
#include <tuple>

#include "millrace/planner/internal/partition.h"
#include "tests/base/caught.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Instance {
  Profile profile;
  Cluster cluster;
  int workers = 1;
};

// A group of stages: what `components` components of a level all run between two cuts.
struct Group {
  int first = 0;
  int last = 0;
  int components = 1;
  std::vector<Group> inner;  // on the level below; empty on level 0
};
using Tree = std::vector<Group>;

// All that can be said about a tree.
struct Candidate {
  double time_s = 0;
  int workers = 0;
  std::vector<int> ends;      // cuts at which the stages end
  std::vector<int> replicas;  // of the stages
  int components = 0;         // of the outermost level
  double memory_bytes = 0;
  auto key() const { return std::tuple(time_s, workers, ends.size(), ends, components); }
};

class Family {
 public:
  explicit Family(const Instance& instance)
      : profile_(instance.profile), cluster_(instance.cluster) {
    const auto n = profile_.layers.size();
    std::vector<unsigned> before(n, 0);
    std::vector<unsigned> after(n, 0);
    for (const ProfileEdge& edge : profile_.edges) {
      before[layer(edge.to)] |= 1U << layer(edge.from);
      after[layer(edge.from)] |= 1U << layer(edge.to);
    }
    unsigned inputs = 0;  // sources that cost nothing are in every cut but the empty one
    for (std::size_t l = 0; l < n; ++l) {
      const LayerProfile& p = profile_.layers[l];
      if (before[l] == 0 && p.compute_s() == 0 && p.output_bytes == 0 && p.parameter_bytes == 0 &&
          p.stash_bytes == 0) {
        inputs |= 1U << l;
      }
    }
    const bool chain = is_chain(profile_);
    for (unsigned set = 0; set < (1U << n); ++set) {
      bool closed = set == 0 || chain || (set & inputs) == inputs;
      for (std::size_t l = 0; l < n; ++l) {
        closed = closed && (((set >> l) & 1U) == 0 || (before[l] & ~set) == 0);
      }
      if (closed) {
        cuts_.push_back(set);
      }
    }
    std::sort(cuts_.begin(), cuts_.end(), [n](unsigned a, unsigned b) {
      if (std::popcount(a) != std::popcount(b)) {
        return std::popcount(a) < std::popcount(b);
      }
      for (std::size_t l = 0; l < n; ++l) {
        if (((a ^ b) >> l) & 1U) {
          return ((a >> l) & 1U) == 1;
        }
      }
      return false;
    });
    for (const unsigned set : cuts_) {
      double bytes = 0;
      for (std::size_t l = 0; l < n; ++l) {
        if (((set >> l) & 1U) && (after[l] & ~set) != 0) {
          bytes += static_cast<double>(profile_.layers[l].output_bytes);
        }
      }
      crossing_.push_back(bytes);
    }
  }

  std::vector<Candidate> all() const {
    std::vector<Candidate> candidates;
    const int top = static_cast<int>(cluster_.levels.size()) - 1;
    for (const Tree& tree : trees(top, 0, static_cast<int>(cuts_.size()) - 1, size(top))) {
      Candidate candidate;
      candidate.time_s = time(top, tree);
      describe(top, tree, 1, candidate);
      for (const Group& group : tree) {
        candidate.components += group.components;
      }
      candidate.memory_bytes = memory(top, tree, 0);
      candidates.push_back(candidate);
    }
    return candidates;
  }

  int cut(const std::set<std::string>& layers) const {
    unsigned set = 0;
    for (const std::string& name : layers) {
      set |= 1U << layer(name);
    }
    return static_cast<int>(std::find(cuts_.begin(), cuts_.end(), set) - cuts_.begin());
  }

 private:
  std::size_t layer(const std::string& name) const {
    std::size_t l = 0;
    while (profile_.layers[l].name != name) {
      ++l;
    }
    return l;
  }
  int size(int level) const { return cluster_.levels[static_cast<std::size_t>(level)].size; }
  int devices(int level) const { return level == 0 ? 1 : devices(level - 1) * size(level - 1); }
  double bandwidth(int level) const {
    return cluster_.levels[static_cast<std::size_t>(level)].bandwidth_bytes_per_s;
  }
  template <typename Number>
  double sum(int first, int last, const Number& number) const {
    double total = 0;
    for (std::size_t l = 0; l < profile_.layers.size(); ++l) {
      if (((cuts_[static_cast<std::size_t>(last)] & ~cuts_[static_cast<std::size_t>(first)]) >> l) &
          1U) {
        total += static_cast<double>(number(profile_.layers[l]));
      }
    }
    return total;
  }

  // Every plan between two cuts on at most `left` components of a level.
  std::vector<Tree> trees(int level, int first, int last, int left) const {
    if (first == last) {
      return {{}};
    }
    std::vector<Tree> found;
    for (int cut = first + 1; cut <= last; ++cut) {
      const unsigned a = cuts_[static_cast<std::size_t>(first)];
      const unsigned b = cuts_[static_cast<std::size_t>(cut)];
      if ((a & ~b) != 0 || (b & ~cuts_[static_cast<std::size_t>(last)]) != 0) {
        continue;
      }
      const std::vector<Tree> inner =
          level == 0 ? std::vector<Tree>{{}} : trees(level - 1, first, cut, size(level - 1));
      for (int q = 1; q <= left; ++q) {
        for (const Tree& rest : trees(level, cut, last, left - q)) {
          for (const Tree& in : inner) {
            Tree tree = {{first, cut, q, in}};
            tree.insert(tree.end(), rest.begin(), rest.end());
            found.push_back(std::move(tree));
          }
        }
      }
    }
    return found;
  }

  double time(int level, const Tree& tree) const {
    double worst = 0;
    for (std::size_t g = 0; g < tree.size(); ++g) {
      const Group& group = tree[g];
      const double inner = level == 0 ? sum(group.first, group.last,
                                            [](const LayerProfile& l) { return l.compute_s(); })
                                      : time(level - 1, group.inner);
      const double w =
          sum(group.first, group.last, [](const LayerProfile& l) { return l.parameter_bytes; });
      const int m = group.components;
      worst = std::max(worst, std::max(inner, 2.0 * (m - 1) * w / bandwidth(level)) / m);
      if (g + 1 < tree.size()) {
        worst = std::max(worst,
                         2.0 * crossing_[static_cast<std::size_t>(group.last)] / bandwidth(level));
      }
    }
    return worst;
  }

  // A stage with r replicas, s workers of its component from it on and p outside has ceil((s + p) /
  // r) in flight; a group on m of its level's components, with q of D workers each and p outside
  // behind it, has ceil((qD + p) / m) outside.
  double memory(int level, const Tree& tree, int outside) const {
    double most = 0;
    int from_on = 0;
    for (std::size_t g = tree.size(); g-- > 0;) {
      const Group& group = tree[g];
      const int behind = from_on;
      from_on += group.components;
      if (level > 0) {
        const int workers = behind * devices(level) + outside;
        most = std::max(most, memory(level - 1, group.inner,
                                     (workers + group.components - 1) / group.components));
        continue;
      }
      const int k = (from_on + outside + group.components - 1) / group.components;
      const double w =
          sum(group.first, group.last, [](const LayerProfile& l) { return l.parameter_bytes; });
      const double stash =
          sum(group.first, group.last, [](const LayerProfile& l) { return l.stash_bytes; });
      most = std::max(most, k * (w + stash) + w);
    }
    return most;
  }

  void describe(int level, const Tree& tree, int times, Candidate& candidate) const {
    for (const Group& group : tree) {
      if (level > 0) {
        describe(level - 1, group.inner, times * group.components, candidate);
        continue;
      }
      candidate.ends.push_back(group.last);
      candidate.replicas.push_back(times * group.components);
      candidate.workers += times * group.components;
    }
  }

  const Profile& profile_;
  const Cluster& cluster_;
  std::vector<unsigned> cuts_;
  std::vector<double> crossing_;
};

// Numbers that collide often, vanish sometimes and do not always fit a double exactly.
Instance random_instance(std::mt19937& random, bool graph, bool two_levels) {
  const auto pick = [&](int range) {
    return static_cast<int>(random() % static_cast<unsigned>(range));
  };
  Instance instance;
  const int n = 1 + pick(two_levels ? 4 : 5);
  const int flavour = pick(3);
  std::vector<testing::Layer> layers(static_cast<std::size_t>(n));
  for (testing::Layer& layer : layers) {
    if (flavour == 0) {
      layer = {1.0 * pick(3), pick(3), pick(3)};
    } else if (flavour == 1) {
      layer = {0.1 * (1 + pick(30)), pick(40), pick(4) * pick(30)};
    } else {
      layer = {1e-7 * pick(1000000), pick(100000), pick(100000)};
    }
  }
  instance.profile = testing::chain(layers);
  for (LayerProfile& layer : instance.profile.layers) {
    layer.stash_bytes = pick(flavour == 0 ? 3 : 50);
  }
  if (graph) {
    instance.profile.edges.clear();
    for (int to = 1; to < n; ++to) {
      for (int from = 0; from < to; ++from) {
        if (pick(3) == 0) {
          instance.profile.edges.push_back(
              {instance.profile.layers[static_cast<std::size_t>(from)].name,
               instance.profile.layers[static_cast<std::size_t>(to)].name});
        }
      }
    }
  }
  if (n > 1 && instance.profile.edges.empty()) {
    make_chain(instance.profile);
  }
  const double bandwidth = flavour == 2 ? 1e5 + pick(1000000) : 1.0 + pick(30);
  instance.cluster = two_levels ? testing::two_levels(2 + pick(2), 2 + pick(2),
                                                      bandwidth * (1 + pick(4)), bandwidth)
                                : testing::flat(1 + pick(5), bandwidth);
  instance.cluster.memory_bytes = 1e18;
  instance.workers = instance.cluster.num_devices();
  return instance;
}

Candidate best_of(const std::vector<Candidate>& all, double memory_bytes) {
  Candidate best;
  best.time_s = kNever;
  for (const Candidate& candidate : all) {
    if (candidate.memory_bytes <= memory_bytes && candidate.key() < best.key()) {
      best = candidate;
    }
  }
  return best;
}

// The plan is the expected one, and a member of the family that needs no more memory than there is.
void expect_plan(const Plan& plan, const Instance& instance, const Family& family,
                 const std::vector<Candidate>& all, const Candidate& expected) {
  ASSERT_EQ(plan.minibatch_s, expected.time_s);  // bits
  ASSERT_EQ(plan.objective_s, expected.time_s);
  std::vector<int> ends;
  std::vector<int> replicas;
  std::set<std::string> layers;
  std::set<int> components;
  std::set<int> ranks;
  const auto& levels = instance.cluster.levels;
  const int devices = levels.size() > 1 ? levels[0].size : 1;
  for (const PlanStage& stage : plan.stages) {
    layers.insert(stage.layers.begin(), stage.layers.end());
    ends.push_back(family.cut(layers));
    replicas.push_back(static_cast<int>(stage.ranks.size()));
    for (const int rank : stage.ranks) {
      ASSERT_TRUE(ranks.insert(rank).second);
      ASSERT_LT(rank, instance.workers);
      components.insert(rank / devices);
    }
  }
  ASSERT_EQ(ends, expected.ends);
  ASSERT_EQ(plan.num_used_ranks(), expected.workers);
  ASSERT_EQ(static_cast<int>(components.size()), expected.components);
  ASSERT_TRUE(std::any_of(all.begin(), all.end(), [&](const Candidate& candidate) {
    return candidate.ends == ends && candidate.replicas == replicas &&
           candidate.time_s == expected.time_s &&
           candidate.memory_bytes <= instance.cluster.memory_bytes;
  }));
}

TEST(Family, PlansOfChainsAndGraphsAreTheBestOfAll) {
  constexpr unsigned kSeed = 30611;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  int idle = 0;
  std::size_t tried = 0;
  for (int round = 0; round < 800; ++round) {
    SCOPED_TRACE(round);
    const Instance instance = random_instance(random, round % 4 >= 2, round % 2 == 1);
    const Family family(instance);
    const std::vector<Candidate> all = family.all();
    tried += all.size();
    const Candidate expected = best_of(all, kNever);
    idle += expected.workers < instance.workers ? 1 : 0;
    const Plan plan = make_plan(
        "pipedream", {instance.profile, instance.cluster, instance.workers, {}, {}, false});
    ASSERT_NO_FATAL_FAILURE(expect_plan(plan, instance, family, all, expected));
  }
  EXPECT_GT(idle, 100);
  std::cout << "800 instances, " << tried << " plans, " << idle << " leave workers idle\n";
}

TEST(Family, MemoryIsKept) {
  constexpr unsigned kSeed = 41;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  int tighter = 0;
  int nothing = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE(round);
    Instance instance = random_instance(random, round % 8 >= 4, round % 4 == 3);
    const Family family(instance);
    const std::vector<Candidate> all = family.all();
    double least = kNever;
    double most = 0;
    for (const Candidate& candidate : all) {
      least = std::min(least, candidate.memory_bytes);
      most = std::max(most, candidate.memory_bytes);
    }
    // From a little below what is needed at least to what is enough for any plan.
    instance.cluster.memory_bytes = least * 0.9 + (most - least * 0.9) * 0.1 * (round % 9);
    const Candidate expected = best_of(all, instance.cluster.memory_bytes);
    const PlanRequest request{instance.profile, instance.cluster, instance.workers, {}, {}, false};
    if (expected.time_s == kNever) {
      ++nothing;
      const Error error = caught([&] { make_plan("pipedream", request); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("fits in memory"), std::string::npos) << error.what();
      const internal::Cuts cuts(instance.profile);
      EXPECT_EQ(internal::least_memory_bytes(
                    {cuts, internal::network_of(instance.cluster, instance.workers), {}, {}, {}}),
                least);
      continue;
    }
    tighter += expected.time_s > best_of(all, kNever).time_s ? 1 : 0;
    const Plan plan = make_plan("pipedream", request);
    EXPECT_TRUE(plan.notes.empty());
    ASSERT_NO_FATAL_FAILURE(expect_plan(plan, instance, family, all, expected));
  }
  EXPECT_GT(tighter, 50);
  EXPECT_GT(nothing, 20);
  std::cout << "600 instances, " << tighter << " slower for want of memory, " << nothing
            << " without any plan\n";
}

}  // namespace
}  // namespace millrace
