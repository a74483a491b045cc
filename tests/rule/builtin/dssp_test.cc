#include <gmock/gmock.h>

#include "tests/base/caught.h"
#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

Value options(int64_t s_low, int64_t range, bool cap) {
  Value all = option("s_low", Value::of(s_low));
  all.set("range", Value::of(range));
  all.set("cap", Value::of(cap));
  return all;
}

Value staleness(int64_t s) { return option("staleness", Value::of(s)); }

// The same times and the same bits.
TEST(Dssp, WithoutRangeItIsServerBounded) {
  for (const int64_t s : {0, 3}) {
    RuleWorld dynamic("dssp", options(s, 0, true), one_slow(4, 2));
    RuleWorld bounded("server-bounded", staleness(s), one_slow(4, 2));
    for (int segment = 0; segment < 2; ++segment) {
      dynamic.run(40);
      bounded.run(40);
      for (int member = 0; member < 4; ++member) {
        EXPECT_EQ(dynamic.now_s(member), bounded.now_s(member));
        EXPECT_EQ(dynamic.weights(member), bounded.weights(member));
      }
    }
  }
  EXPECT_LT(distance_to_bsp("dssp", options(0, 0, true), 4, 1), 2e-15);
}

// The fast ones end sooner than under the lower bound, not sooner than under the upper one. The
// server has the time from its port.
TEST(Dssp, IsBetweenItsBounds) {
  RuleWorld dynamic("dssp", options(3, 12, true), one_slow(4, 2));
  RuleWorld lower("server-bounded", staleness(3), one_slow(4, 2));
  RuleWorld upper("server-bounded", staleness(15), one_slow(4, 2));
  RuleWorld async("server-async", Value::map(), one_slow(4, 2));
  for (RuleWorld* world : {&dynamic, &lower, &upper, &async}) {
    world->run(40);
  }
  for (int member = 0; member < 4; ++member) {
    EXPECT_LE(async.now_s(member), upper.now_s(member));
    EXPECT_LE(upper.now_s(member), dynamic.now_s(member));
    EXPECT_LE(dynamic.now_s(member), lower.now_s(member));
  }
  EXPECT_LT(dynamic.now_s(0) + 1, lower.now_s(0));
}

TEST(Dssp, LeadsAreWithinTheUpperBoundOnlyWithTheCap) {
  const std::vector<int64_t> steps(3, 120);
  EXPECT_EQ(Leads("dssp", options(3, 12, true), one_slow(3, 2), steps).largest(), 15);
  EXPECT_GT(Leads("dssp", options(3, 12, false), one_slow(3, 2), steps).largest(), 25);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    WorldConfig config = pulled(4);
    config.order = Order::kRandom;
    config.seed = seed;
    EXPECT_LE(Leads("dssp", options(1, 2, true), config, {20, 20, 5, 20}).largest(), 3);
  }
}

TEST(Dssp, EndsWhateverMembersDo) {
  for (const bool cap : {true, false}) {
    expect_scaled_sums("dssp", options(1, 3, cap));
  }
}

TEST(Dssp, RefusesOptionsOutOfRange) {
  EXPECT_EQ(caught([] { RuleWorld("dssp", options(-1, 2, true), {}); }).key(), "rule.s_low");
  EXPECT_EQ(caught([] { RuleWorld("dssp", options(1, -2, true), {}); }).key(), "rule.range");
}

}  // namespace
}  // namespace millrace
