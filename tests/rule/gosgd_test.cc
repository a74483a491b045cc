#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>

#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

Value probability(double value) {
  Value options = Value::map();
  options.set("probability", Value::of(value));
  return options;
}

// Keeps every member's share by what is seen in flight, for the rule tells nobody. Looks after each
// turn, in which one member takes what it takes, then sends.
class Shares {
 public:
  explicit Shares(int num_members)
      : alpha(static_cast<std::size_t>(num_members), 1.0 / num_members) {}

  void look(RuleWorld& world) {
    std::multiset<Push> now;
    for (const Packet& packet : world.in_flight()) {
      if (packet.values.has_value()) {
        now.insert({packet.from, packet.to, packet.numbers[0], *packet.values});
      }
    }
    for (const Push& push : missing(flying_, now)) {
      alpha[static_cast<std::size_t>(push.to)] += push.share;
    }
    for (const Push& push : missing(now, flying_)) {
      double& own = alpha[static_cast<std::size_t>(push.from)];
      EXPECT_TRUE(push.share == own / 2 || push.share == own) << push.share << " of " << own;
      num_halves += push.share == own / 2 ? 1 : 0;
      own -= push.share;
    }
    flying_ = std::move(now);
  }

  double sum() const {
    double sum = 0;
    for (const double share : alpha) {
      sum += share;
    }
    for (const Push& push : flying_) {
      sum += push.share;
    }
    return sum;
  }

  // Sum of alpha x, what is in flight included. Those that wait in the last reduction have alpha x
  // in place of x.
  double mass(RuleWorld& world, int64_t reductions) const {
    double sum = 0;
    for (std::size_t i = 0; i < alpha.size(); ++i) {
      const int member = static_cast<int>(i);
      const double x = world.weights(member)[0];
      sum += world.counts(member).reductions > reductions ? x : alpha[i] * x;
    }
    for (const Push& push : flying_) {
      sum += push.share * push.values[0];
    }
    return sum;
  }

  std::vector<double> alpha;
  int64_t num_halves = 0;

 private:
  struct Push {
    int from;
    int to;
    double share;
    Values values;
    auto operator<=>(const Push&) const = default;
  };
  static std::vector<Push> missing(const std::multiset<Push>& of, const std::multiset<Push>& in) {
    std::vector<Push> result;
    std::set_difference(of.begin(), of.end(), in.begin(), in.end(), std::back_inserter(result));
    return result;
  }

  std::multiset<Push> flying_;
};

// No samples, so nothing but gossip changes weights: 0, 1, 2, ...
struct Gossip {
  Gossip(int num_members, double p, WorldConfig config) : shares(num_members) {
    config.num_members = num_members;
    config.num_elements = 1;
    config.own_samples = [](int, int64_t) { return 0.0; };
    config.in_place = true;  // so that weights() can be seen within a step
    config.observe = [this] {
      shares.look(*world);
      int num_ended = 0;
      for (int member = 0; member < world->config().num_members; ++member) {
        num_ended += world->counts(member).reductions > 0 ? 1 : 0;
      }
      if (num_ended < world->config().num_members) {
        worst_sum = std::max(worst_sum, std::abs(shares.sum() - 1));
        worst_mass = std::max(worst_mass, std::abs(shares.mass(*world, 0) - mean));
      }
      seen.push_back({shares.alpha, world->weights(num_watched)[0]});
    };
    world.emplace("gosgd", probability(p), config);
    for (int member = 0; member < num_members; ++member) {
      world->set_weights(member, {static_cast<double>(member)});
    }
    mean = (num_members - 1) / 2.0;
  }

  struct Seen {
    std::vector<double> alpha;
    double weight;
  };
  std::optional<RuleWorld> world;
  Shares shares;
  double mean = 0;
  double worst_sum = 0;
  double worst_mass = 0;
  int num_watched = 0;  // the member whose weight is noted
  std::vector<Seen> seen;
};

TEST(Gosgd, HandNumbers) {
  // Member 0 pushes at 1 s, then hands over what it keeps; member 1 is at its gradient until 10 s.
  WorldConfig config;
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member == 0 ? 1.0 : 10.0; };
  Gossip gossip(2, 1, config);
  gossip.num_watched = 1;
  gossip.world->run(1);
  const bool found = std::any_of(gossip.seen.begin(), gossip.seen.end(), [](const auto& seen) {
    return std::abs(seen.weight - 2.0 / 3) < 1e-15 && seen.alpha[1] == 0.75;
  });
  EXPECT_TRUE(found);
  EXPECT_EQ(gossip.world->settled()[0], 0.5);
}

TEST(Gosgd, MutualPushesLoseNothing) {
  for (const int num_members : {2, 3, 5}) {
    for (const Order order : {Order::kLockStep, Order::kRandom}) {
      WorldConfig config;
      config.order = order;
      Gossip gossip(num_members, 1, config);
      gossip.world->run(1000);
      EXPECT_LT(gossip.worst_sum, 1e-12);
      EXPECT_LT(gossip.worst_mass, 1e-12);
      EXPECT_NEAR(gossip.world->settled()[0], gossip.mean, 1e-12);
      EXPECT_EQ(gossip.world->weights(0), gossip.world->weights(num_members - 1));
      EXPECT_GE(gossip.shares.num_halves, 950 * num_members);
    }
  }
}

TEST(Gosgd, UnequalEndsLoseNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    WorldConfig config;
    config.order = Order::kRandom;
    config.seed = seed;
    Gossip gossip(4, 0.5, config);
    gossip.world->run({100, 50, 0, 1});
    EXPECT_LT(gossip.worst_sum, 1e-12);
    EXPECT_LT(gossip.worst_mass, 1e-12);
    EXPECT_NEAR(gossip.world->settled()[0], 1.5, 1e-12);
  }
}

// Pushes to those that have finished would leave the last one next to nothing.
TEST(Gosgd, TheLastOneRunningHoldsAll) {
  WorldConfig config;
  config.order = Order::kTimed;
  Gossip gossip(3, 1, config);
  gossip.world->run({1000, 10, 20});
  EXPECT_NEAR(gossip.shares.alpha[0], 1, 1e-12);
  EXPECT_LT(gossip.shares.num_halves, 100);
}

TEST(Gosgd, SendsAsOftenAsItSays) {
  WorldConfig config;
  config.num_members = 4;
  config.seed = 11;
  RuleWorld world("gosgd", probability(0.1), config);
  world.run(2000);
  int64_t num_sent = 0;
  for (int member = 0; member < 4; ++member) {
    num_sent += world.counts(member).elements / config.num_elements;
  }
  // Three members hand over what they have.
  EXPECT_LT(std::abs(static_cast<double>(num_sent - 3) - 800), 4 * std::sqrt(8000 * 0.1 * 0.9));
}

TEST(Gosgd, AloneIsBsp) {
  WorldConfig config;
  config.num_members = 1;
  config.momentum = 0.9;
  RuleWorld gossip("gosgd", probability(1), config);
  RuleWorld bsp("bsp", Value::map(), config);
  gossip.run(10);
  bsp.run(10);
  EXPECT_EQ(gossip.settled(), bsp.settled());
}

// Members with goals of their own and unlike speeds come near the mean of the goals together.
TEST(Gosgd, TrainsTogether) {
  WorldConfig config;
  config.num_members = 4;
  config.num_elements = 1;
  config.order = Order::kTimed;
  config.duration_s = [](int member, int64_t) { return member == 0 ? 10.0 : 1.0; };
  config.lr = 0.02;
  config.gradient = [](int member, int64_t, const Values& w) { return Values{w[0] - member}; };
  RuleWorld world("gosgd", probability(0.5), config);
  world.run({60, 600, 600, 600});
  EXPECT_NEAR(world.settled()[0], 1.5, 0.75);
  world.run({30, 300, 300, 300});
  EXPECT_NEAR(world.settled()[0], 1.5, 0.75);
}

TEST(Gosgd, RefusesProbabilitiesThatAreNone) {
  for (const double value : {-0.1, 1.5}) {
    const Error error = caught([&] { RuleWorld("gosgd", probability(value), WorldConfig{}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.key(), "rule.probability");
  }
}

}  // namespace
}  // namespace millrace
