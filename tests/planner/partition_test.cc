// The partition search on chains and one network level, with every restriction, against
// enumeration, and against a plain dynamic program where that is too large. family_test.cc has
// layer graphs, several levels and memory.
#include "millrace/planner/internal/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using testing::Layer;

struct Restriction {
  std::optional<int> stages;
  std::vector<int> replicas;
  bool straight = false;
};

struct Candidate {
  double time_s = 0;
  int workers = 0;
  std::vector<int> ends;  // one past the last layer of every stage
  std::vector<int> replicas;
  // The tie rule, written out.
  auto key() const { return std::tuple(time_s, workers, ends.size(), ends); }
};

// The formula once more, term by term, from the paper's statement and not from the planner's code.
double formula(const std::vector<Layer>& layers, double bandwidth, const std::vector<int>& ends,
               const std::vector<int>& replicas) {
  double worst = 0;
  int first = 0;
  for (std::size_t s = 0; s < ends.size(); ++s) {
    double t = 0;
    double w = 0;
    for (int l = first; l < ends[s]; ++l) {
      t += layers[l].compute_s;
      w += static_cast<double>(layers[l].parameter_bytes);
    }
    const int m = replicas[s];
    worst = std::max(worst, std::max(t, 2.0 * (m - 1) * w / bandwidth) / m);
    if (s + 1 < ends.size()) {
      worst =
          std::max(worst, 2.0 * static_cast<double>(layers[ends[s] - 1].output_bytes) / bandwidth);
    }
    first = ends[s];
  }
  return worst;
}

bool allows(const Restriction& r, const std::vector<int>& replicas) {
  if (r.stages && static_cast<int>(replicas.size()) != *r.stages) {
    return false;
  }
  if (r.replicas.size() > 1 && replicas != r.replicas) {
    return false;
  }
  return std::all_of(replicas.begin(), replicas.end(), [&](int m) {
    return (!r.straight || m == 1) && (r.replicas.size() != 1 || m == r.replicas[0]);
  });
}

// Every way to cut the layers, times every replica vector with sum at most `workers`.
Candidate brute_force(const std::vector<Layer>& layers, int workers, double bandwidth,
                      const Restriction& restriction, int64_t& tried) {
  const int n = static_cast<int>(layers.size());
  std::optional<Candidate> best;
  for (unsigned cuts = 0; cuts < (1U << (n - 1)); ++cuts) {
    std::vector<int> ends;
    for (int l = 1; l < n; ++l) {
      if ((cuts >> (l - 1)) & 1U) {
        ends.push_back(l);
      }
    }
    ends.push_back(n);
    if (static_cast<int>(ends.size()) > workers) {
      continue;
    }
    std::vector<int> replicas(ends.size(), 1);
    while (true) {
      const int used = std::accumulate(replicas.begin(), replicas.end(), 0);
      if (used <= workers && allows(restriction, replicas)) {
        ++tried;
        Candidate candidate{formula(layers, bandwidth, ends, replicas), used, ends, replicas};
        if (!best || candidate.key() < best->key()) {
          best = candidate;
        }
      }
      std::size_t digit = 0;  // counts up in base `workers`
      while (digit < replicas.size() && replicas[digit] == workers) {
        replicas[digit++] = 1;
      }
      if (digit == replicas.size()) {
        break;
      }
      ++replicas[digit];
    }
  }
  return best.value();
}

// Numbers that collide often, vanish sometimes and do not always fit a double exactly.
std::vector<Layer> random_layers(std::mt19937& random, int n) {
  const int flavour = static_cast<int>(random() % 4);
  std::vector<Layer> layers(n);
  for (Layer& layer : layers) {
    const auto pick = [&](unsigned range) { return static_cast<int>(random() % range); };
    switch (flavour) {
      case 0:
        layer = {1.0, 1, 1};
        break;  // all equal
      case 1:
        layer = {pick(3) * 1.0, pick(3), pick(3)};
        break;  // ties and zeros
      case 2:
        layer = {pick(100) * 0.1, pick(40), pick(4) * pick(30)};
        break;
      default:
        layer = {pick(1000000) * 1e-7, pick(100000), pick(100000)};
        break;
    }
  }
  return layers;
}

Restriction random_restriction(std::mt19937& random, int n, int workers, int kind) {
  Restriction r;
  const int most = std::min(n, workers);
  switch (kind) {
    case 1:
      r.stages = 1 + static_cast<int>(random() % most);
      break;
    case 2:
      r.straight = true;
      break;
    case 3: {  // one number for every stage, with or without a number of stages
      r.replicas = {1 + static_cast<int>(random() % workers)};
      if (random() % 2 == 0) {
        r.stages = 1 + static_cast<int>(random() % std::min(n, workers / r.replicas[0]));
      }
      break;
    }
    case 4: {  // a list, one a stage
      int left = workers;
      const int stages = 1 + static_cast<int>(random() % most);
      for (int s = 0; s < stages; ++s) {
        const int spare = left - (stages - 1 - s);
        r.replicas.push_back(1 + static_cast<int>(random() % spare));
        left -= r.replicas.back();
      }
      if (stages == 1) {
        r.stages = 1;
      }
      break;
    }
    default:
      break;
  }
  return r;
}

TEST(Partition, EqualsEnumerationOfTheWholeFamily) {
  constexpr unsigned kSeed = 20240611;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  int64_t tried = 0;
  int idle = 0;
  int instances = 0;
  for (int round = 0; round < 15000; ++round) {
    const int kind = round % 5;
    const int n = 1 + static_cast<int>(random() % 8);
    const int workers = 1 + static_cast<int>(random() % 4);
    const double bandwidth = round % 3 == 0 ? 1.0 : 0.5 + static_cast<double>(random() % 1000);
    const std::vector<Layer> layers = random_layers(random, n);
    const Restriction r = random_restriction(random, n, workers, kind);
    const Candidate expected = brute_force(layers, workers, bandwidth, r, tried);

    const Profile profile = testing::chain(layers);
    const Cluster cluster = testing::flat(workers, bandwidth);
    PlanRequest request{profile, cluster, workers, r.stages, r.replicas, r.straight};
    const Plan plan = make_plan("pipedream", request);
    std::vector<int> ends;
    std::vector<int> replicas;
    int layer = 0;
    for (const PlanStage& stage : plan.stages) {
      layer += static_cast<int>(stage.layers.size());
      ends.push_back(layer);
      replicas.push_back(static_cast<int>(stage.ranks.size()));
    }
    ASSERT_EQ(plan.minibatch_s, expected.time_s) << "round " << round;  // bits
    ASSERT_EQ(ends, expected.ends) << "round " << round;
    ASSERT_EQ(replicas, expected.replicas) << "round " << round;
    ++instances;
    idle += expected.workers < workers ? 1 : 0;
  }
  EXPECT_EQ(instances, 15000);
  EXPECT_GT(idle, 1000);  // the family with idle workers is exercised
  EXPECT_GT(tried, 100000);
  std::cout << instances << " instances, " << tried << " partitions, " << idle
            << " leave workers idle\n";
}

// What a request says, as the search takes it.
struct LongChain {
  std::vector<Layer> layers;
  double relative_speed = 1;
  double bandwidth_bytes_per_s = 1;
  int workers = 1;
  std::optional<int> stages;
  std::vector<int> replicas;
};

// O(N^2 M^2 K) without any trick: the least time of exactly or freely many stages.
double plain_least_time(const LongChain& p) {
  const int n = static_cast<int>(p.layers.size());
  const int most_stages = p.stages.value_or(std::min(n, p.workers));
  const double inf = std::numeric_limits<double>::infinity();
  using Row = std::vector<double>;
  std::vector<Row> after(n + 1, Row(p.workers + 1, inf));  // of one stage fewer
  after[n].assign(p.workers + 1, 0);
  double best = inf;
  for (int stages = 1; stages <= most_stages; ++stages) {
    std::vector<Row> now(n + 1, Row(p.workers + 1, inf));
    for (int i = 0; i < n; ++i) {
      double compute = 0;
      int64_t bytes = 0;
      for (int j = i; j < n; ++j) {
        compute += p.layers[j].compute_s;
        bytes += p.layers[j].parameter_bytes;
        const double cut = j + 1 < n ? 2.0 * static_cast<double>(p.layers[j].output_bytes) /
                                           p.bandwidth_bytes_per_s
                                     : 0.0;
        for (int q = 1; q <= p.workers; ++q) {
          if (!p.replicas.empty() && q != p.replicas[0]) {
            continue;
          }
          const double exchange =
              2.0 * (q - 1) * static_cast<double>(bytes) / p.bandwidth_bytes_per_s;
          const double stage = std::max(compute / p.relative_speed, exchange) / q;
          for (int m = q; m <= p.workers; ++m) {
            now[i][m] = std::min(now[i][m], std::max({stage, cut, after[j + 1][m - q]}));
          }
        }
      }
    }
    if (!p.stages || stages == *p.stages) {
      best = std::min(best, now[0][p.workers]);
    }
    after = now;  // and no stage may be empty: after[n] is infinite from here on
  }
  return best;
}

TEST(Partition, EqualsThePlainProgramOnLongChains) {
  constexpr unsigned kSeed = 7;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  for (int round = 0; round < 40; ++round) {
    LongChain p;
    p.workers = 5 + static_cast<int>(random() % 12);
    p.relative_speed = 0.25 + 0.25 * static_cast<double>(random() % 4);
    p.bandwidth_bytes_per_s = 1e3 + static_cast<double>(random() % 100000);
    p.layers = random_layers(random, 20 + static_cast<int>(random() % 40));
    if (round % 4 == 1) {
      p.stages = 2 + static_cast<int>(random() % 4);
    } else if (round % 4 == 2) {
      p.replicas = {1 + static_cast<int>(random() % 3)};
    }
    const internal::Cuts cuts(testing::chain(p.layers));
    ASSERT_EQ(cuts.whole(), static_cast<int>(p.layers.size()));
    const std::optional<internal::Partition> partition =
        internal::best_partition({cuts,
                                  {p.relative_speed, {{p.workers, 1, p.bandwidth_bytes_per_s}}},
                                  p.stages,
                                  p.replicas,
                                  {}});
    ASSERT_TRUE(partition.has_value());
    ASSERT_EQ(partition->minibatch_s, plain_least_time(p)) << "round " << round;
    int next = 0;
    std::size_t used = 0;
    for (const internal::PartitionStage& stage : partition->stages) {
      ASSERT_EQ(stage.first_cut, next);
      ASSERT_GT(stage.last_cut, stage.first_cut);
      next = stage.last_cut;
      used += stage.ranks.size();
    }
    ASSERT_EQ(next, cuts.whole());
    ASSERT_LE(used, static_cast<std::size_t>(p.workers));
  }
}

// On a chain the ends of stages are bisected, on other graphs they are tried out: a layer beside
// the chain that costs nothing in the formula must change no time.
TEST(Partition, BothWaysToFindTheEndsOfStagesAgree) {
  constexpr unsigned kSeed = 17;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20; ++round) {
    const int n = 8 + static_cast<int>(random() % 16);
    const Profile chain = testing::chain(random_layers(random, n));
    Profile graph = chain;
    LayerProfile beside;
    beside.name = "beside";
    beside.update_s = 1;  // or it would count as an input
    graph.layers.push_back(beside);
    Cluster cluster = testing::two_levels(2 + round % 3, 3, 5000, 800);
    cluster.memory_bytes = round % 2 == 0 ? 1e18 : 4e5;
    const int workers = cluster.num_devices();
    const auto time = [&](const Profile& profile) {
      const internal::Cuts cuts(profile);
      EXPECT_EQ(cuts.ordered(), &profile == &chain);
      const std::optional<internal::Partition> partition = internal::best_partition(
          {cuts, internal::network_of(cluster, workers), {}, {}, cluster.memory_bytes});
      return partition ? partition->minibatch_s : -1.0;
    };
    const double expected = time(chain);
    EXPECT_EQ(time(graph), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace millrace
