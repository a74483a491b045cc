#include <gmock/gmock.h>

#include <cmath>

#include "tests/base/caught.h"
#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

Value tau(int64_t updates) { return option("tau", Value::of(updates)); }

// Two members push 1 and 10 to a server at 0, in this order: the second gets 1 and has 11.
TEST(Asgd, RepliesWithWhatWasBeforeAndBothAdd) {
  WorldConfig config;
  config.num_elements = 1;
  config.initial = {0};
  config.lr = 1;
  config.gradient = [](int member, int64_t, const Values&) {
    return Values{member == 0 ? -1. : -10.};
  };
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member + 2.0; };
  std::vector<Packet> replies;
  RuleWorld* running = nullptr;
  config.observe = [&] {
    for (const Packet& packet : running->in_flight()) {
      if (packet.from == Port::kServer) {
        replies.push_back(packet);
      }
    }
  };
  RuleWorld world("asgd", tau(1), config);
  running = &world;
  world.run(1);
  EXPECT_EQ(world.weights(0), Values{1});
  EXPECT_EQ(world.weights(1), Values{11});
  EXPECT_EQ(world.settled(), Values{11});
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(*replies[0].values, Values{0});
  EXPECT_EQ(*replies[1].values, Values{1});
}

// In float32: the server's sum against one in float64.
TEST(Asgd, TheServerHasAllDeltas) {
  for (const int64_t every : {1, 3}) {
    WorldConfig config = pulled(4);
    config.is_double = false;
    config.momentum = 0.9;
    config.lr = 0.01;
    config.order = Order::kRandom;
    RuleWorld world("asgd", tau(every), config);
    world.run({700, 600, 500, 701});
    EXPECT_LT(distance(world.settled(), initial_and_deltas(world)), 2e-5);
    // What is left at the end of a segment is pushed then, without a reply.
    const auto pushes = [every](int64_t updates) { return (updates + every - 1) / every; };
    EXPECT_EQ(world.counts(0).elements, 6 * pushes(700));
    EXPECT_EQ(world.counts(3).elements, 6 * pushes(701));
    EXPECT_EQ(world.counts(Port::kServer).elements,
              6 * (700 / every + 600 / every + 500 / every + 701 / every));
  }
}

// Alone, a replica has what the server has, to the last bit.
TEST(Asgd, OneReplicaHasTheServersBits) {
  WorldConfig config = pulled(1);
  config.is_double = false;
  config.momentum = 0.9;
  RuleWorld world("asgd", tau(1), config);
  world.run(100);
  EXPECT_EQ(world.weights(0), world.settled());
}

TEST(Asgd, EndsWhateverMembersDo) {
  for (const int64_t every : {1, 3}) {
    run_unequal_segments("asgd", tau(every), [](RuleWorld& world) {
      EXPECT_LT(distance(world.settled(), initial_and_deltas(world)), 1e-13);
    });
  }
}

TEST(Asgd, RefusesOptionsOutOfRange) {
  EXPECT_EQ(caught([] { RuleWorld("asgd", tau(0), {}); }).key(), "rule.tau");
}

}  // namespace
}  // namespace millrace
