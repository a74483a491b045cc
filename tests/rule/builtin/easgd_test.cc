#include <gmock/gmock.h>

#include <cmath>

#include "tests/base/caught.h"
#include "tests/rule/server_worlds.h"

namespace millrace {
namespace {

Value options(int64_t tau, double alpha) {
  Value all = option("tau", Value::of(tau));
  all.set("alpha", Value::of(alpha));
  return all;
}

// From zero, the first update takes member m to `goals[m]`, later ones leave it there.
WorldConfig jumping(const Values& goals) {
  WorldConfig config;
  config.num_members = static_cast<int>(goals.size());
  config.num_elements = 1;
  config.initial = {0};
  config.lr = 1;
  config.gradient = [goals](int member, int64_t step, const Values&) {
    return Values{step == 0 ? -goals[static_cast<std::size_t>(member)] : 0};
  };
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member + 1.0; };
  return config;
}

TEST(Easgd, BothMoveFromWhatTheOtherWas) {
  for (const auto& [alpha, worker, centre] :
       {std::tuple{0.5, 0.5, 0.5}, std::tuple{0.25, 0.75, 0.25}, std::tuple{0.0, 1.0, 0.0}}) {
    RuleWorld world("easgd", options(1, alpha), jumping({1}));
    world.run(1);
    EXPECT_EQ(world.weights(0), Values{worker});
    EXPECT_EQ(world.settled(), Values{centre});
  }
  RuleWorld world("easgd", options(1, 0.5), jumping({1, -1}));
  world.run(1);
  EXPECT_EQ(world.weights(0), Values{0.5});
  EXPECT_EQ(world.weights(1), Values{-0.25});
  EXPECT_EQ(world.settled(), Values{-0.25});
}

// tau counts a member's own updates, over segments too: at 3, 6 and 9 of 10.
TEST(Easgd, ExchangesEveryTauUpdates) {
  RuleWorld world("easgd", options(3, 0.5), jumping({1, 2}));
  std::vector<int64_t> sent;
  for (int i = 0; i < 10; ++i) {
    world.run({1, 2});
    sent.push_back(world.counts(0).elements);
  }
  EXPECT_EQ(sent, (std::vector<int64_t>{0, 0, 1, 1, 1, 2, 2, 2, 3, 3}));
  EXPECT_EQ(world.counts(1).elements, 20 / 3);
  EXPECT_EQ(world.counts(Port::kServer).elements, 10 / 3 + 20 / 3);
}

// centre + sum of weights = what they were + all local updates; each exchange rounds by no more
// than half a unit of the larger side's, each local update by as much.
TEST(Easgd, ConservesTheSum) {
  for (const bool is_double : {true, false}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      WorldConfig config = pulled(4);
      config.is_double = is_double;
      config.order = Order::kRandom;
      config.seed = seed;
      RuleWorld world("easgd", options(2, 0.3), config);
      world.run({40, 21, 7, 40});
      const Values sum = initial_and_deltas(world);
      const Values centre = world.settled();
      const int64_t events = world.counts(Port::kServer).messages + 40 + 21 + 7 + 40;
      const double unit = std::ldexp(1, is_double ? -53 : -24);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        double is = centre[i];
        for (int member = 0; member < 4; ++member) {
          is += world.weights(member)[i];
        }
        const double bound = unit * static_cast<double>(events) * (2 * 3.5);
        EXPECT_NEAR(is, sum[i] + 4 * config.initial[i], bound) << "element " << i;
      }
      EXPECT_GT(distance(world.weights(0), centre), 1e-3);
    }
  }
}

TEST(Easgd, EndsWhateverMembersDo) {
  run_unequal_segments("easgd", options(2, 0.5), [](RuleWorld& world) {
    const Values sum = initial_and_deltas(world);
    Values is = world.settled();
    for (int member = 0; member < world.config().num_members; ++member) {
      for (std::size_t i = 0; i < is.size(); ++i) {
        is[i] += world.weights(member)[i] - world.config().initial[i];
      }
    }
    EXPECT_LT(distance(is, sum), 1e-13);
  });
}

TEST(Easgd, RefusesOptionsOutOfRange) {
  EXPECT_EQ(caught([] { RuleWorld("easgd", options(0, 0.5), {}); }).key(), "rule.tau");
  EXPECT_EQ(caught([] { RuleWorld("easgd", options(1, -0.1), {}); }).key(), "rule.alpha");
  EXPECT_EQ(caught([] { RuleWorld("easgd", options(1, 1.1), {}); }).key(), "rule.alpha");
}

}  // namespace
}  // namespace millrace
