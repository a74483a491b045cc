#include <gmock/gmock.h>

#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

TEST(ServerSync, IsBsp) {
  for (const int num_members : {1, 2, 3, 4, 8}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_LT(distance_to_bsp("server-sync", Value::map(), num_members, seed), 2e-15)
          << num_members << " members";
    }
  }
}

// Unequal shares that stay as they are.
TEST(ServerSync, IsBspWithUnequalShares) {
  WorldConfig config = pulled(3);
  config.momentum = 0.9;
  config.decay = 0.01;
  config.own_samples = [](int member, int64_t) { return member + 1; };
  config.gradient = [](int member, int64_t step, const Values& weights) {
    return pull(member, step, weights, member + 1);
  };
  RuleWorld bsp("bsp", Value::map(), config);
  RuleWorld world("server-sync", Value::map(), config);
  bsp.run(30);
  world.run(30);
  EXPECT_LT(distance(world.settled(), bsp.settled()), 2e-15);
}

// In any order of events; a reduction in order of arrival would differ in float32.
TEST(ServerSync, HasTheSameBitsInEveryOrderAndOnEveryReplica) {
  std::optional<Values> first;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    WorldConfig config = pulled(4);
    config.is_double = false;
    config.order = Order::kRandom;
    config.seed = seed;
    RuleWorld world("server-sync", Value::map(), config);
    world.run(20);
    for (int member = 0; member < 4; ++member) {
      EXPECT_EQ(world.weights(member), world.settled());
    }
    first = first.value_or(world.settled());
    EXPECT_EQ(world.settled(), *first);
  }
}

TEST(ServerSync, SendsEachWayOnceAnUpdate) {
  RuleWorld world("server-sync", Value::map(), pulled(3));
  world.run(10);
  EXPECT_EQ(world.counts(1).elements, 10 * 6);
  EXPECT_EQ(world.counts(Port::kServer).elements, 3 * 10 * 6);
}

TEST(ServerSync, EndsWhateverMembersDo) { expect_scaled_sums("server-sync", Value::map()); }

// Everybody waits for the slowest.
TEST(ServerSync, GoesAtTheSlowestsPace) {
  WorldConfig config = one_slow(3, 10);
  config.duration_s = [](int member, int64_t) { return member == 2 ? 10.0 : 1.0; };
  RuleWorld world("server-sync", Value::map(), config);
  world.run(5);
  EXPECT_EQ(world.now_s(0), 50);
}

}  // namespace
}  // namespace millrace
