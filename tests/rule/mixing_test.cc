#include "millrace/rule/internal/mixing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

namespace millrace {
namespace {

constexpr double kPi = std::numbers::pi;

std::vector<int> nodes_of(int num_members, int node_size) {
  std::vector<int> nodes;
  for (int member = 0; member < num_members; ++member) {
    nodes.push_back(member / node_size);
  }
  return nodes;
}

std::vector<double> mixed(const Mixing& mixing, int64_t round, const std::vector<double>& x) {
  std::vector<double> result(x.size(), 0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      result[i] += mixing.weight(round, static_cast<int>(i), static_cast<int>(j)) * x[j];
    }
  }
  return result;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

// What a round leaves of the slowest mode, from the second round on: the most that any start has
// come to after many rounds. Rounding brings in a little of the mean, which would stay.
double contraction(const Mixing& mixing, int num_members) {
  const int64_t num_rounds = 100 * mixing.period();
  double worst = 0;
  for (int mode = 1; mode < num_members; ++mode) {
    std::vector<double> x;
    for (int member = 0; member < num_members; ++member) {
      x.push_back(std::cos(2 * kPi * mode * member / num_members + 0.3));
    }
    double log_left = 0;
    for (int64_t round = 0; round < 2 * num_rounds; ++round) {
      x = mixed(mixing, round, x);
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) / num_members;
      for (double& value : x) {
        value -= mean;
      }
      const double left = norm(x);
      if (left < 1e-12) {
        log_left = -std::numeric_limits<double>::infinity();
        break;
      }
      for (double& value : x) {
        value /= left;
      }
      log_left += round < num_rounds ? 0 : std::log(left);
    }
    worst = std::max(worst, std::exp(log_left / static_cast<double>(num_rounds)));
  }
  return worst;
}

// Rounds after which every member holds the mean; 0: not within 20.
int rounds_to_mean(const Mixing& mixing, int num_members) {
  for (int rounds = 1; rounds <= 20; ++rounds) {
    double worst = 0;
    for (int start = 0; start < num_members; ++start) {
      std::vector<double> x(static_cast<std::size_t>(num_members), 0);
      x[static_cast<std::size_t>(start)] = 1;
      for (int round = 0; round < rounds; ++round) {
        x = mixed(mixing, round, x);
      }
      for (const double value : x) {
        worst = std::max(worst, std::abs(value - 1.0 / num_members));
      }
    }
    if (worst < 1e-15) {
      return rounds;
    }
  }
  return 0;
}

TEST(Mixing, MatricesAreDoublyStochastic) {
  int num_offered = 0;
  for (const Topology topology :
       {Topology::kComplete, Topology::kRing, Topology::kExponential, Topology::kAlternating}) {
    for (int n = 1; n <= 16; ++n) {
      for (int node_size = 1; node_size <= n; ++node_size) {
        const Mixing mixing(topology, nodes_of(n, node_size));
        if (!mixing.needs().empty()) {
          continue;
        }
        ++num_offered;
        for (int64_t round = 0; round < 2 * mixing.period(); ++round) {
          for (int i = 0; i < n; ++i) {
            double row = 0;
            double column = 0;
            for (int j = 0; j < n; ++j) {
              const double weight = mixing.weight(round, i, j);
              EXPECT_GE(weight, 0);
              EXPECT_EQ(weight, mixing.weight(round + mixing.period(), i, j));
              row += weight;
              column += mixing.weight(round, j, i);
            }
            EXPECT_NEAR(row, 1, 1e-15);
            EXPECT_NEAR(column, 1, 1e-15);
            EXPECT_GT(mixing.weight(round, i, i), 0);
          }
        }
      }
    }
  }
  EXPECT_GT(num_offered, 300);
}

TEST(Mixing, OffersWhatItCan) {
  const auto needs = [](Topology topology, std::vector<int> nodes) {
    return Mixing(topology, std::move(nodes)).needs();
  };
  EXPECT_EQ(needs(Topology::kRing, nodes_of(5, 1)), "an even number of replicas");
  EXPECT_EQ(needs(Topology::kRing, nodes_of(6, 1)), "");
  EXPECT_EQ(needs(Topology::kRing, nodes_of(1, 1)), "");
  EXPECT_EQ(needs(Topology::kExponential, nodes_of(7, 1)), "");
  EXPECT_EQ(needs(Topology::kComplete, nodes_of(7, 1)), "");
  EXPECT_EQ(needs(Topology::kAlternating, nodes_of(6, 3)), "");
  EXPECT_EQ(needs(Topology::kAlternating, nodes_of(6, 2)),
            "a number of nodes that is a power of two");
  EXPECT_EQ(needs(Topology::kAlternating, {0, 0, 1}), "equally many replicas in every node");
}

TEST(Mixing, RingsContractByTheCosine) {
  for (const int n : {6, 8, 10, 16}) {
    EXPECT_NEAR(contraction(Mixing(Topology::kRing, nodes_of(n, 1)), n), std::cos(2 * kPi / n),
                1e-9)
        << n;
  }
  EXPECT_EQ(rounds_to_mean(Mixing(Topology::kRing, nodes_of(2, 1)), 2), 1);
  EXPECT_EQ(rounds_to_mean(Mixing(Topology::kRing, nodes_of(4, 1)), 4), 2);
  EXPECT_EQ(rounds_to_mean(Mixing(Topology::kRing, nodes_of(6, 1)), 6), 0);
}

TEST(Mixing, PowersOfTwoReachTheMean) {
  for (const int m : {1, 2, 3, 4}) {
    const int n = 1 << m;
    EXPECT_EQ(rounds_to_mean(Mixing(Topology::kExponential, nodes_of(n, 1)), n), m);
    EXPECT_EQ(rounds_to_mean(Mixing(Topology::kComplete, nodes_of(n, 1)), n), 1);
  }
  EXPECT_EQ(rounds_to_mean(Mixing(Topology::kComplete, nodes_of(7, 1)), 7), 1);
}

TEST(Mixing, DirectedPairsContractByTheProductOfCosines) {
  for (const int n : {3, 5, 6, 7, 9, 12}) {
    const int m = static_cast<int>(std::ceil(std::log2(n)));
    double worst = 0;
    for (int j = 1; j < n; ++j) {
      double product = 1;
      for (int k = 0; k < m; ++k) {
        product *= std::abs(std::cos(kPi * j * (1 << k) / n));
      }
      worst = std::max(worst, std::pow(product, 1.0 / m));
    }
    EXPECT_NEAR(contraction(Mixing(Topology::kExponential, nodes_of(n, 1)), n), worst, 1e-9) << n;
  }
  EXPECT_NEAR(contraction(Mixing(Topology::kExponential, nodes_of(3, 1)), 3), 0.5, 1e-9);
}

TEST(Mixing, AlternatingReachesTheMeanAndSharesTheNetwork) {
  for (const int num_nodes : {2, 4, 8}) {
    for (const int node_size : {1, 2, 3}) {
      const int n = num_nodes * node_size;
      const Mixing mixing(Topology::kAlternating, nodes_of(n, node_size));
      const int rounds = rounds_to_mean(mixing, n);
      const int period = static_cast<int>(mixing.period());
      EXPECT_EQ(1 << (period / 2), num_nodes);
      EXPECT_GT(rounds, 0);
      EXPECT_LE(rounds, period);
      for (int64_t round = 0; round < period; ++round) {
        int num_across = 0;
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < n; ++j) {
            num_across += i / node_size != j / node_size && mixing.weight(round, i, j) > 0 ? 1 : 0;
          }
        }
        // With two nodes there is one pair, which has every other round.
        EXPECT_EQ(num_across, num_nodes == 2 ? (round == 0 ? n : 0) : n / 2);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
