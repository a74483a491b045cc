#include <gmock/gmock.h>

#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

// Nobody waits: each is done when its own updates are.
TEST(ServerAsync, NobodyWaits) {
  WorldConfig config = one_slow(3, 10);
  config.duration_s = [](int member, int64_t) { return member == 2 ? 10.0 : 1.0; };
  RuleWorld world("server-async", Value::map(), config);
  world.run(5);
  EXPECT_EQ(world.now_s(0), 5);
  EXPECT_EQ(world.now_s(2), 50);
}

// Two members whose deltas are 2 and 20, halved: the second reads what both pushed.
TEST(ServerAsync, RepliesWithTheWeightsOfThatMoment) {
  WorldConfig config;
  config.num_elements = 1;
  config.lr = 1;
  config.gradient = [](int member, int64_t, const Values&) {
    return Values{member == 0 ? -2. : -20.};
  };
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member + 2.0; };
  RuleWorld world("server-async", Value::map(), config);
  world.run(1);
  EXPECT_EQ(world.weights(0), Values{1});
  EXPECT_EQ(world.weights(1), Values{11});
  EXPECT_EQ(world.settled(), Values{11});
}

TEST(ServerAsync, SendsEachWayOnceAnUpdate) {
  RuleWorld world("server-async", Value::map(), pulled(3));
  world.run(10);
  EXPECT_EQ(world.counts(1).elements, 10 * 6);
  EXPECT_EQ(world.counts(Port::kServer).elements, 3 * 10 * 6);
}

TEST(ServerAsync, AloneItIsSgd) {
  EXPECT_LT(distance_to_bsp("server-async", Value::map(), 1, 1), 2e-15);
  EXPECT_GT(distance_to_bsp("server-async", Value::map(), 4, 1), 1e-6);
}

TEST(ServerAsync, EndsWhateverMembersDo) { expect_scaled_sums("server-async", Value::map()); }

}  // namespace
}  // namespace millrace
