// What tests of the rules with a server share: worlds in which members are unlike in speed and in
// their numbers of updates (case: a job must end when workers finish at different times), and sums
// over what the members applied.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/rule/rule_world.h"

namespace millrace {

inline Value option(const std::string& key, Value value) {
  Value all = Value::map();
  all.set(key, std::move(value));
  return all;
}

// Pulls member m's weights towards its own goal, as a quadratic does. A sum over `samples`.
inline Values pull(int member, int64_t step, const Values& weights, double samples) {
  Values gradient;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto place = static_cast<double>(i);
    gradient.push_back(
        samples * (weights[i] - 0.3 * member - 0.1 * place + 0.05 * static_cast<double>(step % 5)));
  }
  return gradient;
}

inline WorldConfig pulled(int num_members) {
  WorldConfig config;
  config.num_members = num_members;
  config.num_elements = 6;
  config.initial = {1, -1, 2, -2, 0.5, 3};
  config.gradient = [](int member, int64_t step, const Values& weights) {
    return pull(member, step, weights, 1);
  };
  return config;
}

// initial + all deltas of all members.
inline Values initial_and_deltas(RuleWorld& world) {
  Values sum = world.config().initial;
  for (int member = 0; member < world.config().num_members; ++member) {
    for (const Applied& applied : world.applied(member)) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += applied.delta[i];
      }
    }
  }
  return sum;
}

// Runs two segments of unequal numbers of updates in many orders and timings: 1, 2 and 10 times as
// slow, members without any update or with one. `check` looks at the world after each segment.
template <class Check>
void run_unequal_segments(const std::string& rule, const Value& options, const Check& check) {
  const std::vector<double> slowness = {1, 2, 10, 1, 3, 1, 1, 2};
  const std::vector<int64_t> updates = {9, 5, 13, 1, 0, 7, 9, 2};
  for (const int num_members : {1, 2, 3, 4, 8}) {
    for (uint64_t seed = 1; seed <= 14; ++seed) {
      SCOPED_TRACE(testing::Message() << rule << ", members " << num_members << ", seed " << seed);
      WorldConfig config = pulled(num_members);
      config.seed = seed;
      config.order = seed == 1 ? Order::kLockStep : seed == 2 ? Order::kTimed : Order::kRandom;
      config.in_place = seed % 2 == 0;
      config.momentum = 0.5;
      config.duration_s = [&](int member, int64_t) {
        return slowness[static_cast<std::size_t>(member)];
      };
      // Now and then a member has no samples.
      config.own_samples = [](int member, int64_t step) {
        return (3 * member + step) % 7 == 6 ? 0.0 : 1.0;
      };
      config.samples = [num_members](int64_t) { return num_members; };
      RuleWorld world(rule, options, config);
      for (const int64_t more : {0, 2}) {
        std::vector<int64_t> steps;
        for (int member = 0; member < num_members; ++member) {
          steps.push_back(updates[static_cast<std::size_t>(member)] + more * (member % 2));
        }
        world.run(steps);
        check(world);
      }
    }
  }
}

// How far the server's weights are from those of bsp after `updates`, momentum and decay included,
// where all members have equally many samples: the most over two segments.
inline double distance_to_bsp(const std::string& rule, const Value& options, int num_members,
                              uint64_t seed) {
  WorldConfig config = pulled(num_members);
  config.momentum = 0.9;
  config.decay = 0.01;
  config.order = Order::kRandom;
  config.seed = seed;
  config.own_samples = [](int, int64_t) { return 4; };
  config.gradient = [](int member, int64_t step, const Values& weights) {
    return pull(member, step, weights, 4);
  };
  RuleWorld bsp("bsp", Value::map(), config);
  RuleWorld world(rule, options, config);
  double most = 0;
  for (int segment = 0; segment < 2; ++segment) {
    bsp.run(15);
    world.run(15);
    most = std::max(most, distance(world.settled(), bsp.settled()));
  }
  return most;
}

// Runs unequal segments of a rule whose members scale their deltas: the server has their sum.
inline void expect_scaled_sums(const std::string& rule, const Value& options) {
  run_unequal_segments(rule, options, [](RuleWorld& world) {
    const Values& initial = world.config().initial;
    Values sum = initial_and_deltas(world);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = initial[i] + (sum[i] - initial[i]) / world.config().num_members;
    }
    EXPECT_LT(distance(world.settled(), sum), 1e-13);
  });
}

// The leads with which the server let members go, in the order of its replies.
class Leads {
 public:
  // Runs `steps` of the rule.
  Leads(const std::string& rule, const Value& options, WorldConfig config,
        const std::vector<int64_t>& steps) {
    RuleWorld* running = nullptr;
    int64_t num_seen = 0;
    config.observe = [&] {
      const int64_t num_sent = running->counts(Port::kServer).messages;
      for (const Packet& packet : running->in_flight()) {
        if (num_sent > num_seen && packet.from == Port::kServer) {
          largest_ = std::max(largest_, static_cast<int64_t>(packet.numbers[0]));
        }
      }
      num_seen = num_sent;
    };
    world_ = std::make_unique<RuleWorld>(rule, options, config);
    running = world_.get();
    running->run(steps);
  }
  int64_t largest() const { return largest_; }
  RuleWorld& world() { return *world_; }

 private:
  std::unique_ptr<RuleWorld> world_;
  int64_t largest_ = 0;
};

// The last is `slowness` times as slow, the others differ a little.
inline WorldConfig one_slow(int num_members, double slowness) {
  WorldConfig config = pulled(num_members);
  config.order = Order::kTimed;
  config.duration_s = [num_members, slowness](int member, int64_t step) {
    const double jitter =
        0.2 * RandomKey(3).with(static_cast<uint64_t>(member)).uniform(static_cast<uint64_t>(step));
    return (member == num_members - 1 ? slowness : 1) + jitter;
  };
  return config;
}

}  // namespace millrace
