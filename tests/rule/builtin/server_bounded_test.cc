#include <gmock/gmock.h>

#include "tests/base/caught.h"
#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

Value staleness(int64_t s) { return option("staleness", Value::of(s)); }

TEST(ServerBounded, WithoutStalenessItIsBsp) {
  for (const int num_members : {1, 2, 3, 4, 8}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_LT(distance_to_bsp("server-bounded", staleness(0), num_members, seed), 2e-15)
          << num_members << " members";
    }
  }
  EXPECT_GT(distance_to_bsp("server-bounded", staleness(3), 4, 1), 1e-6);
}

TEST(ServerBounded, LeadsAreWithinTheStaleness) {
  for (const int64_t s : {0, 1, 3}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      WorldConfig config = pulled(4);
      config.order = Order::kRandom;
      config.seed = seed;
      EXPECT_LE(Leads("server-bounded", staleness(s), config, {20, 20, 5, 20}).largest(), s);
    }
    EXPECT_EQ(Leads("server-bounded", staleness(s), one_slow(3, 10), {20, 20, 20}).largest(), s);
  }
}

// By hand: one member takes 10 s, the other 1 s and 3 updates ahead. Its update k + 3 is let go at
// 10 k s.
TEST(ServerBounded, TheSlowestSetsThePace) {
  WorldConfig config = pulled(2);
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member == 1 ? 10.0 : 1.0; };
  RuleWorld world("server-bounded", staleness(3), config);
  world.run(8);
  EXPECT_EQ(world.now_s(0), 50);
  EXPECT_EQ(world.now_s(1), 80);
}

TEST(ServerBounded, EndsWhateverMembersDo) {
  for (const int64_t s : {0, 2}) {
    expect_scaled_sums("server-bounded", staleness(s));
  }
}

TEST(ServerBounded, RefusesOptionsOutOfRange) {
  EXPECT_EQ(caught([] { RuleWorld("server-bounded", staleness(-1), {}); }).key(), "rule.staleness");
}

}  // namespace
}  // namespace millrace
