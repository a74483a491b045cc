// The partition search against enumeration of its whole family, and against a plain dynamic program
// where that is too large; its restrictions; its speed.
#include "millrace/planner/internal/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
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

// O(N^2 M^2 K) without any trick: the least time of exactly or freely many stages.
double plain_least_time(const internal::ChainProblem& p) {
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
                                           p.network.bandwidth_bytes_per_s
                                     : 0.0;
        for (int q = 1; q <= p.workers; ++q) {
          if (!p.replicas.empty() && q != p.replicas[0]) {
            continue;
          }
          const double exchange =
              2.0 * (q - 1) * static_cast<double>(bytes) / p.network.bandwidth_bytes_per_s;
          const double stage = std::max(compute / p.network.relative_speed, exchange) / q;
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
    internal::ChainProblem p;
    p.workers = 5 + static_cast<int>(random() % 12);
    p.network = {0.25 + 0.25 * static_cast<double>(random() % 4),
                 1e3 + static_cast<double>(random() % 100000)};
    const int n = 20 + static_cast<int>(random() % 40);
    for (const Layer& l : random_layers(random, n)) {
      p.layers.push_back({l.compute_s, l.parameter_bytes, l.output_bytes});
    }
    if (round % 4 == 1) {
      p.stages = 2 + static_cast<int>(random() % 4);
    } else if (round % 4 == 2) {
      p.replicas = {1 + static_cast<int>(random() % 3)};
    }
    const internal::ChainPartition partition = internal::best_partition(p);
    ASSERT_EQ(partition.minibatch_s, plain_least_time(p)) << "round " << round;
    int next = 0;
    int used = 0;
    for (const internal::ChainStage& stage : partition.stages) {
      ASSERT_EQ(stage.first, next);
      ASSERT_GE(stage.last, stage.first);
      next = stage.last + 1;
      used += stage.replicas;
    }
    ASSERT_EQ(next, n);
    ASSERT_LE(used, p.workers);
  }
}

// Processor time, so that other work on the machine does not count. An unoptimised or sanitized
// build is several times slower than a release; the limits leave room for that.
TEST(Partition, IsFastEnough) {
  std::mt19937 random(3);
  for (const auto& [n, limit_s] : {std::pair{350, 1.0}, std::pair{2000, 20.0}}) {
    for (const bool fixed : {false, true}) {
      internal::ChainProblem p;
      p.workers = 16;
      p.network = {1.0, 1e9};
      if (fixed) {
        p.stages = 12;
      }
      for (int l = 0; l < n; ++l) {
        p.layers.push_back({static_cast<double>(random() % 1000) * 1e-5,
                            static_cast<int64_t>(random() % 10000000),
                            static_cast<int64_t>(random() % 10000000)});
      }
      const std::clock_t begin = std::clock();
      const internal::ChainPartition partition = internal::best_partition(p);
      const double spent_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      EXPECT_LT(spent_s, limit_s);
      EXPECT_GT(partition.minibatch_s, 0);
      std::cout << n << " layers x 16 workers" << (fixed ? ", 12 stages" : "") << ": " << spent_s
                << " s\n";
    }
  }
}

}  // namespace
}  // namespace millrace
