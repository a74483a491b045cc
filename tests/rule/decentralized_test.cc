#include <gmock/gmock.h>

#include <cstddef>
#include <utility>

#include "millrace/rule/internal/mixing.h"
#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

using testing::HasSubstr;

Value options(const std::string& topology, int64_t node_size = 0) {
  Value options = Value::map();
  options.set("topology", Value::of(topology));
  options.set("node_size", Value::of(node_size));
  return options;
}

struct Case {
  const char* name;
  Topology topology;
  int num_members;
  int node_size;
};
const Case kCases[] = {
    {"complete", Topology::kComplete, 5, 1},       {"ring", Topology::kRing, 6, 1},
    {"exponential", Topology::kExponential, 4, 1}, {"exponential", Topology::kExponential, 5, 1},
    {"alternating", Topology::kAlternating, 8, 2}, {"alternating", Topology::kAlternating, 3, 3},
    {"exponential", Topology::kExponential, 1, 1},
};

Mixing mixing_of(const Case& c) {
  std::vector<int> nodes;
  for (int member = 0; member < c.num_members; ++member) {
    nodes.push_back(member / c.node_size);
  }
  return {c.topology, std::move(nodes)};
}

// x <- W x, rows of x being members.
std::vector<Values> mixed(const Mixing& mixing, int64_t round, const std::vector<Values>& x) {
  std::vector<Values> result(x.size(), Values(x[0].size(), 0));
  for (std::size_t to = 0; to < x.size(); ++to) {
    for (std::size_t from = 0; from < x.size(); ++from) {
      for (std::size_t i = 0; i < x[0].size(); ++i) {
        result[to][i] +=
            mixing.weight(round, static_cast<int>(to), static_cast<int>(from)) * x[from][i];
      }
    }
  }
  return result;
}

Values gradient_of(int member, int64_t step, const Values& w) {
  return {(member + 1) * (w[0] - member),
          (member + 1) * (0.5 * w[1] + static_cast<double>(step % 4))};
}

// Member 1 has no samples in every fourth update.
double samples_of(int member, int64_t step) {
  return member == 1 && step % 4 == 2 ? 0 : member + 1;
}

TEST(Decentralized, MixesWhileItTrains) {
  for (const Case& c : kCases) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      WorldConfig config;
      config.num_members = c.num_members;
      config.num_elements = 2;
      config.momentum = 0.9;
      config.own_samples = samples_of;
      config.gradient = gradient_of;
      config.order = Order::kRandom;
      config.seed = seed;
      config.in_place = seed == 2;
      RuleWorld world("decentralized", options(c.name, c.node_size), config);

      const Mixing mixing = mixing_of(c);
      std::vector<Values> x(static_cast<std::size_t>(c.num_members), Values(2, 0));
      std::vector<Values> velocity = x;
      int64_t round = 0;
      int64_t step = 0;
      for (const int num_updates : {7, 4}) {
        world.run(num_updates);
        for (int update = 0; update < num_updates; ++update, ++step) {
          std::vector<Values> next = mixed(mixing, round++, x);
          for (std::size_t member = 0; member < x.size(); ++member) {
            const double samples = samples_of(static_cast<int>(member), step);
            const Values gradient = gradient_of(static_cast<int>(member), step, x[member]);
            for (std::size_t i = 0; samples > 0 && i < 2; ++i) {
              velocity[member][i] = 0.9 * velocity[member][i] + gradient[i] / samples;
              next[member][i] -= 0.1 * velocity[member][i];
            }
          }
          x = next;
        }
        x = mixed(mixing, round++, x);
        Values mean(2, 0);
        for (std::size_t member = 0; member < x.size(); ++member) {
          EXPECT_LT(distance(world.weights(static_cast<int>(member)), x[member]), 1e-13) << c.name;
          mean[0] += x[member][0] / c.num_members;
          mean[1] += x[member][1] / c.num_members;
        }
        EXPECT_LT(distance(world.settled(), mean), 1e-13);
      }
    }
  }
}

// Without gradients, members that start at 0, 1, 2, ...
RuleWorld& start(std::optional<RuleWorld>& world, const Case& c, uint64_t seed) {
  WorldConfig config;
  config.num_members = c.num_members;
  config.num_elements = 1;
  config.own_samples = [](int, int64_t) { return 0.0; };
  config.order = seed == 0 ? Order::kLockStep : Order::kRandom;
  config.seed = seed;
  world.emplace("decentralized", options(c.name, c.node_size), config);
  for (int member = 0; member < c.num_members; ++member) {
    world->set_weights(member, {static_cast<double>(member)});
  }
  return *world;
}

TEST(Decentralized, CompleteAgreesInOneRound) {
  std::optional<RuleWorld> world;
  start(world, kCases[0], 1).run(1);
  for (int member = 0; member < 5; ++member) {
    EXPECT_NEAR(world->weights(member)[0], 2, 1e-15);
  }
}

TEST(Decentralized, EndsAtUnequalTimesKeepTheMeanOfPairs) {
  for (const Case& c : kCases) {
    const bool directed = c.topology == Topology::kExponential && c.num_members == 5;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::optional<RuleWorld> world;
      start(world, c, seed);
      const double mean = (c.num_members - 1) / 2.0;
      std::vector<int64_t> steps;
      for (int member = 0; member < c.num_members; ++member) {
        steps.push_back((3 * member + static_cast<int>(seed)) % 8);
      }
      world->run(steps);
      if (directed) {
        EXPECT_GE(world->settled()[0], 0);
        EXPECT_LE(world->settled()[0], 4);
      } else {
        EXPECT_NEAR(world->settled()[0], mean, 1e-13) << c.name;
      }
      // All go on from one round.
      const double before = world->settled()[0];
      world->run(30);
      EXPECT_NEAR(world->settled()[0], before, 1e-13) << c.name;
      EXPECT_NEAR(world->weights(0)[0], before, 1e-3) << c.name;
    }
  }
}

TEST(Decentralized, SendsToTheNeighboursOfTheRound) {
  const std::pair<const char*, int> neighbours[] = {
      {"complete", 3}, {"ring", 1}, {"exponential", 1}};
  for (const auto& [name, number] : neighbours) {
    WorldConfig config;
    config.num_members = 4;
    RuleWorld world("decentralized", options(name), config);
    world.run(10);
    EXPECT_EQ(world.counts(2).elements, number * 4 * 11);
    EXPECT_EQ(world.counts(2).reductions, 0);
  }
}

TEST(Decentralized, TakesNodesFromThePort) {
  const Case& c = kCases[4];
  WorldConfig config;
  config.num_members = c.num_members;
  config.nodes = {0, 0, 1, 1, 2, 2, 3, 3};
  RuleWorld given("decentralized", options(c.name, 2), config);
  RuleWorld found("decentralized", options(c.name), config);
  given.run(9);
  found.run(9);
  EXPECT_EQ(given.weights(3), found.weights(3));
}

TEST(Decentralized, RefusesWhatDoesNotFit) {
  const auto refusal = [](const Value& options, WorldConfig config) {
    return caught([&] { RuleWorld("decentralized", options, std::move(config)).run(1); });
  };
  WorldConfig three;
  three.num_members = 3;
  EXPECT_THAT(refusal(options("ring"), three).message(), HasSubstr("an even number of replicas"));
  EXPECT_EQ(refusal(options("ring", 2), three).key(), "rule.node_size");
  EXPECT_EQ(refusal(options("star"), three).key(), "rule.topology");
  three.nodes = {0, 1, 2};
  EXPECT_THAT(refusal(options("alternating"), three).message(), HasSubstr("a power of two"));
}

}  // namespace
}  // namespace millrace
