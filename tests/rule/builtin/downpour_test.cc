#include <gmock/gmock.h>

#include "tests/base/caught.h"
#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

Value options(int64_t n_fetch, int64_t n_push) {
  Value all = option("n_fetch", Value::of(n_fetch));
  all.set("n_push", Value::of(n_push));
  return all;
}

WorldConfig with_momentum(int num_members, bool is_double) {
  WorldConfig config = pulled(num_members);
  config.is_double = is_double;
  config.num_elements = 200;
  config.initial = Values(200, 0.3);
  config.momentum = 0.9;
  config.decay = 0.001;
  config.gradient = {};  // drawn
  return config;
}

// With one replica, bsp is plain SGD. Gathering two updates rounds otherwise.
TEST(Downpour, OneReplicaIsPlainSgdBitForBit) {
  for (const bool is_double : {false, true}) {
    RuleWorld plain("bsp", Value::map(), with_momentum(1, is_double));
    RuleWorld one("downpour", options(1, 1), with_momentum(1, is_double));
    RuleWorld two("downpour", options(2, 2), with_momentum(1, is_double));
    for (int segment = 0; segment < 2; ++segment) {
      plain.run(50);
      one.run(50);
      two.run(50);
      EXPECT_EQ(one.weights(0), plain.weights(0));
      EXPECT_EQ(one.settled(), plain.settled());
      EXPECT_NE(two.settled(), plain.settled());
      EXPECT_LT(distance(two.settled(), plain.settled()), is_double ? 1e-13 : 1e-4);
    }
  }
}

// Deltas of 1; fetches at 2, 4, 6, pushes at 3, 6: a fetch does not lose what is gathered.
TEST(Downpour, FetchesAndPushesEachAtItsOwnPace) {
  WorldConfig config;
  config.num_members = 1;
  config.num_elements = 1;
  config.lr = 1;
  std::vector<double> weights;
  config.gradient = [&](int, int64_t, const Values& now) {
    weights.push_back(now[0]);
    return Values{-1};
  };
  RuleWorld world("downpour", options(2, 3), config);
  world.run(7);
  // After update 2 the server still has 0; update 3 pushes 3 and goes on from 1; update 4 fetches
  // 3; update 6 pushes 3 more, then fetches 6.
  EXPECT_EQ(weights, (std::vector<double>{0, 1, 0, 1, 3, 4, 6}));
  EXPECT_EQ(world.settled(), Values{7});
}

TEST(Downpour, TrafficFallsWithThePeriods) {
  for (const auto& [n_fetch, n_push] : {std::pair{1, 1}, std::pair{4, 2}, std::pair{3, 6}}) {
    RuleWorld world("downpour", options(n_fetch, n_push), pulled(3));
    world.run(24);
    EXPECT_EQ(world.counts(1).elements, 6 * 24 / n_push);
    EXPECT_EQ(world.counts(Port::kServer).elements, 3 * 6 * 24 / n_fetch);
  }
}

TEST(Downpour, EndsWhateverMembersDo) {
  for (const auto& [n_fetch, n_push] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{2, 4}}) {
    run_unequal_segments("downpour", options(n_fetch, n_push), [](RuleWorld& world) {
      EXPECT_LT(distance(world.settled(), initial_and_deltas(world)), 1e-13);
    });
  }
}

TEST(Downpour, RefusesOptionsOutOfRange) {
  EXPECT_EQ(caught([] { RuleWorld("downpour", options(0, 1), {}); }).key(), "rule.n_fetch");
  EXPECT_EQ(caught([] { RuleWorld("downpour", options(1, -2), {}); }).key(), "rule.n_push");
}

}  // namespace
}  // namespace millrace
