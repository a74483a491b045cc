#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"

namespace millrace {
namespace {

using testing::HasSubstr;

Value options(std::initializer_list<std::pair<const char*, int64_t>> values) {
  Value options = Value::map();
  for (const auto& [key, value] : values) {
    options.set(key, Value::of(value));
  }
  return options;
}

// Two nodes of two members; members pull towards goals of their own.
double samples_of(int member, int64_t step) {
  return member == 1 && step % 5 == 3 ? 0 : static_cast<double>(1 + member % 3);
}
Values gradient_of(int member, int64_t step, const Values& w) {
  Values sums;
  for (std::size_t i = 0; i < w.size(); ++i) {
    sums.push_back(samples_of(member, step) * (w[i] - member + static_cast<double>(i)));
  }
  return sums;
}
WorldConfig config_of(int num_members) {
  WorldConfig config;
  config.num_members = num_members;
  config.num_elements = 3;
  config.initial = {1, -2, 5};
  config.momentum = 0.9;
  config.own_samples = samples_of;
  config.gradient = gradient_of;
  config.order = Order::kRandom;
  config.num_ranges = 2;
  return config;
}

// Nodes of two as the paper has them, each with one worker of the joined batch. Sends after every
// `skip`-th update, merges `wait` updates later or at the end.
std::vector<Values> merged(int num_nodes, int skip, int wait, int num_updates) {
  struct Node {
    Values w{1, -2, 5};
    Values velocity{0, 0, 0};
  };
  std::vector<Node> nodes(static_cast<std::size_t>(num_nodes));
  Values sent;
  int age = -1;  // nothing is under way
  const auto merge = [&] {
    const double f = age == 0 ? 1 : 2 * age;
    for (Node& node : nodes) {
      for (std::size_t i = 0; i < 3; ++i) {
        node.w[i] = (f * node.w[i] + sent[i]) / (f + num_nodes);
      }
    }
    age = -1;
  };
  for (int update = 0; update < num_updates; ++update) {
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const int first = 2 * static_cast<int>(n);
      const Values a = gradient_of(first, update, nodes[n].w);
      const Values b = gradient_of(first + 1, update, nodes[n].w);
      const double samples = samples_of(first, update) + samples_of(first + 1, update);
      for (std::size_t i = 0; i < 3; ++i) {
        nodes[n].velocity[i] = 0.9 * nodes[n].velocity[i] + (a[i] + b[i]) / samples;
      }
      for (std::size_t i = 0; i < 3; ++i) {
        nodes[n].w[i] -= 0.1 * nodes[n].velocity[i];
      }
    }
    age += age >= 0 ? 1 : 0;
    if (age >= 0 && age == wait) {
      merge();
    }
    if ((update + 1) % skip == 0) {
      sent = Values(3, 0);
      for (const Node& node : nodes) {
        for (std::size_t i = 0; i < 3; ++i) {
          sent[i] += node.w[i];
        }
      }
      age = 0;
      if (wait == 0) {
        merge();
      }
    }
  }
  if (age >= 0) {
    merge();
  }
  std::vector<Values> result;
  for (const Node& node : nodes) {
    result.push_back(node.w);
  }
  return result;
}

TEST(Daso, MergesByTheFormula) {
  for (const int num_nodes : {2, 3}) {
    for (const auto& [skip, wait] : {std::pair{4, 1}, std::pair{2, 1}, std::pair{1, 1},
                                     std::pair{3, 3}, std::pair{3, 2}, std::pair{2, 0}}) {
      for (const int num_updates : {12, 7, 1}) {
        WorldConfig config = config_of(2 * num_nodes);
        config.seed = static_cast<uint64_t>(num_updates);
        config.in_place = skip == 2;
        RuleWorld world("daso", options({{"node_size", 2}, {"skip", skip}, {"wait", wait}}),
                        config);
        world.run(num_updates);
        const std::vector<Values> oracle = merged(num_nodes, skip, wait, num_updates);
        Values mean(3, 0);
        for (int member = 0; member < 2 * num_nodes; ++member) {
          const Values& node = oracle[static_cast<std::size_t>(member / 2)];
          EXPECT_LT(distance(world.weights(member), node), 1e-12)
              << skip << " " << wait << " " << num_updates;
          for (std::size_t i = 0; i < 3; ++i) {
            mean[i] += node[i] / (2 * num_nodes);
          }
        }
        EXPECT_LT(distance(world.settled(), mean), 1e-12);
      }
    }
  }
}

TEST(Daso, MembersOfNodesTakeTurns) {
  WorldConfig config = config_of(4);
  config.nodes = {0, 1, 0, 1};
  RuleWorld world("daso", options({{"skip", 2}}), config);
  world.run(6);  // three sums: the first and third by members 0 and 1
  // Gradients and samples every update; sums over nodes.
  for (int member = 0; member < 4; ++member) {
    const int num_sums = member < 2 ? 2 : 1;
    EXPECT_EQ(world.counts(member).reduced_elements, 6 * (3 + 1) + num_sums * 3) << member;
    EXPECT_EQ(world.counts(member).elements, num_sums * 3) << member;
  }
}

// Blocking, by skip = 0, in the warm-up and in the cool-down: one worker with the joined batch.
TEST(Daso, BlockingIsBsp) {
  WorldConfig config = config_of(6);
  // Equal shares for momentum's sake, but for a node without samples in one update.
  config.own_samples = [](int member, int64_t step) -> double {
    return step == 4 && member >= 4 ? 0 : 1 + member % 2;
  };
  config.momentum = 0;
  config.gradient = [&](int member, int64_t step, const Values& w) {
    const double samples = config.own_samples(member, step);
    return Values{samples * (w[0] - member), samples * w[1], samples * (0.3 * w[2] + member)};
  };
  RuleWorld bsp("bsp", Value::map(), config);
  RuleWorld blocking("daso", options({{"node_size", 2}, {"skip", 0}}), config);
  RuleWorld warm_up("daso", options({{"node_size", 2}, {"warmup", 10}}), config);
  for (RuleWorld* world : {&bsp, &blocking, &warm_up}) {
    world->run(10);
  }
  EXPECT_LT(distance(blocking.settled(), bsp.settled()), 1e-13);
  EXPECT_EQ(warm_up.settled(), blocking.settled());
  EXPECT_EQ(blocking.weights(0), blocking.weights(5));
  warm_up.run(3);
  EXPECT_GT(distance(warm_up.weights(0), warm_up.weights(5)), 1e-3);

  // What is under way when the cool-down begins is merged first.
  RuleWorld cool_down(
      "daso", options({{"node_size", 2}, {"skip", 3}, {"wait", 3}, {"cooldown", 4}}), config);
  cool_down.run(10);
  EXPECT_EQ(cool_down.weights(0), cool_down.weights(5));
}

TEST(Daso, OneNodeIsBsp) {
  RuleWorld bsp("bsp", Value::map(), config_of(4));
  RuleWorld daso("daso", Value::map(), config_of(4));
  bsp.run(9);
  daso.run(9);
  EXPECT_EQ(daso.weights(2), bsp.weights(2));
  EXPECT_EQ(daso.counts(2).messages, 0);
}

// With a loss that stays, (1, 1, 1) becomes (8, 2, 2) after two updates: members make steps of
// their own in every second one.
WorldConfig constant_gradients(int num_members) {
  WorldConfig config;
  config.num_members = num_members;
  config.num_elements = 1;
  config.gradient = [](int member, int64_t, const Values&) { return Values{member % 2 * 2.0}; };
  config.loss = [](int, int64_t step) {
    return step < 4 ? 1.0 : std::pow(0.9, static_cast<double>(step));
  };
  config.order = Order::kRandom;
  return config;
}
Value skipping() {
  Value skipping = options({{"skip", 1}, {"period", 2}, {"patience", 0}, {"node_size", 2}});
  skipping.set("max_skip", Value::of(8));
  return skipping;
}

TEST(Daso, NoMembersStepIsLost) {
  RuleWorld alone("daso", skipping(), constant_gradients(2));
  alone.run(15);
  EXPECT_NEAR(alone.settled()[0], -0.1 * 15, 1e-13);
  EXPECT_NE(alone.weights(0), alone.weights(1));
  // Sums of gradients and of samples in updates 0 to 3 and in every second one from there, losses
  // every 2; in update 11, 8 after the last sum over nodes, the members' mean; settle().
  EXPECT_EQ(alone.counts(0).reductions, 2 * (4 + 6) + 7 + 2 + 1);

  // Nodes that do alike follow the path of one node's mean, drawn back to what was sent.
  RuleWorld pair("daso", skipping(), constant_gradients(4));
  pair.run(15);
  double mean = 0;
  double sent = 0;
  for (int update = 0; update < 15; ++update) {
    mean -= 0.1;
    if (1 <= update && update <= 4) {
      mean = (2 * mean + 2 * sent) / 4;
    } else if (update == 13) {
      mean = (4 * mean + 2 * sent) / 6;
    }
    if (update <= 3 || update == 11) {
      sent = mean;
    }
  }
  EXPECT_NEAR(pair.settled()[0], mean, 1e-13);
}

TEST(Daso, UnknownLossesChangeNothing) {
  Value watching = options({{"node_size", 2}, {"period", 1}, {"patience", 0}});
  WorldConfig config = config_of(4);
  RuleWorld watched("daso", watching, config);
  RuleWorld plain("daso", options({{"node_size", 2}}), config);
  watched.run(20);
  plain.run(20);
  EXPECT_EQ(watched.weights(3), plain.weights(3));
  // Known to some, in one update of two, it is the mean over those.
  config.loss = [](int member, int64_t step) {
    return member == 2 && step % 2 == 0 ? 1.0 : std::numeric_limits<double>::quiet_NaN();
  };
  RuleWorld known("daso", watching, config);
  known.run(20);
  EXPECT_GT(distance(known.weights(3), plain.weights(3)), 0);
}

TEST(Daso, RefusesWhatDoesNotFit) {
  WorldConfig config;
  config.num_members = 4;
  const auto refusal = [&](const Value& options) {
    return caught([&] { RuleWorld("daso", options, config).run(1); });
  };
  EXPECT_EQ(refusal(options({{"node_size", 3}})).key(), "rule.node_size");
  EXPECT_EQ(refusal(options({{"skip", -1}})).key(), "rule.skip");
  EXPECT_EQ(refusal(options({{"wait", 5}})).key(), "rule.wait");
  EXPECT_EQ(refusal(options({{"max_skip", 0}})).key(), "rule.max_skip");
  EXPECT_EQ(refusal(options({{"patience", -1}})).key(), "rule.patience");
  config.nodes = {0, 0, 0, 1};
  EXPECT_THAT(refusal(Value::map()).message(), HasSubstr("equally many replicas in every node"));
}

}  // namespace
}  // namespace millrace
