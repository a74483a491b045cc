#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "millrace/base/error.h"
#include "millrace/rule/internal/choose.h"
#include "millrace/rule/rule.h"
#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"
#include "tests/rule/sizes_port.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kResidual = 1;

struct Options {
  double alpha = 0.3;
  double beta = 0.15;
  int64_t period = 1;
  int64_t refresh = 100;
  double weight = 1;

  Value value() const {
    Value all = Value::map();
    all.set("alpha", Value::of(alpha));
    all.set("beta", Value::of(beta));
    all.set("period", Value::of(period));
    all.set("refresh", Value::of(refresh));
    all.set("weight", Value::of(weight));
    return all;
  }
};

Values drawn(int64_t size, int member, int64_t step) {
  const RandomKey key =
      RandomKey(5).with(static_cast<uint64_t>(member)).with(static_cast<uint64_t>(step));
  Values values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(key.normal(static_cast<uint64_t>(i)));
  }
  return values;
}

double samples_of(int member, int64_t step) {
  return static_cast<double>((member + step) % 3 + (member == 0 ? 1 : 0));
}

Values gradient_of(int member, int64_t step, const Values& weights) {
  Values gradient = drawn(static_cast<int64_t>(weights.size()), member, step);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    gradient[i] = samples_of(member, step) * (0.5 * weights[i] + gradient[i]);
  }
  return gradient;
}

WorldConfig config_of(int num_members, int64_t num_elements) {
  WorldConfig config;
  config.num_members = num_members;
  config.num_elements = num_elements;
  config.initial = drawn(num_elements, 99, 0);
  config.momentum = 0.5;
  config.decay = 0.01;
  config.own_samples = samples_of;
  config.gradient = gradient_of;
  config.order = Order::kRandom;
  return config;
}

// The rule round by round, in float64, without messages.
class Oracle {
 public:
  Oracle(const Options& options, const WorldConfig& config)
      : options_(options), config_(config), center_(config.initial), last_(center_.size()) {
    const auto size = static_cast<double>(center_.size());
    num_core_ = std::lround(options.beta * size);
    num_explorers_ = std::lround((options.alpha - options.beta) * size);
    refresh();
    members_.resize(static_cast<std::size_t>(config.num_members));
    for (Member& member : members_) {
      member.weights = config.initial;
      member.velocity = member.residual = Values(center_.size());
    }
  }

  void run(std::vector<int64_t> steps) {
    while (true) {
      std::vector<std::pair<int, std::set<std::size_t>>> pushes;
      for (std::size_t m = 0; m < members_.size(); ++m) {
        if (until_exchange(static_cast<int>(m), steps[m])) {
          pushes.emplace_back(m, part_of(static_cast<int>(m)));
        }
      }
      if (pushes.empty()) {
        return;
      }
      for (const auto& [m, part] : pushes) {
        Values& residual = members_[static_cast<std::size_t>(m)].residual;
        for (const std::size_t i : part) {
          center_[i] += residual[i] / static_cast<double>(members_.size());
          last_[i] = std::exchange(residual[i], 0);
        }
      }
      for (const auto& [m, part] : pushes) {
        for (const std::size_t i : part) {
          members_[static_cast<std::size_t>(m)].weights[i] = center_[i];
        }
      }
      if (++num_rounds_ % options_.refresh == 0) {
        refresh();
      }
    }
  }

  const Values& center() const { return center_; }
  const Values& weights(int m) const { return members_[static_cast<std::size_t>(m)].weights; }
  const Values& residual(int m) const { return members_[static_cast<std::size_t>(m)].residual; }
  int num_changes() const { return num_changes_; }  // of the core

 private:
  struct Member {
    Values weights, velocity, residual;
    int64_t steps = 0;
    int64_t exchanges = 0;
  };

  // False: the steps left are over before.
  bool until_exchange(int m, int64_t& steps_left) {
    Member& member = members_[static_cast<std::size_t>(m)];
    while (steps_left > 0) {
      --steps_left;
      double samples = 0;
      for (int other = 0; other < config_.num_members; ++other) {
        samples += samples_of(other, member.steps);
      }
      Values gradient(center_.size());
      if (samples_of(m, member.steps) > 0) {
        gradient = gradient_of(m, member.steps, member.weights);
      }
      for (std::size_t i = 0; i < center_.size(); ++i) {
        double& v = member.velocity[i];
        v = config_.momentum * v + gradient[i] / (samples / config_.num_members) +
            config_.decay * member.weights[i];
        member.weights[i] -= config_.lr * v;
        member.residual[i] -= config_.lr * v;
      }
      if (++member.steps % options_.period == 0) {
        return true;
      }
    }
    return false;
  }

  std::set<std::size_t> part_of(int m) {
    Member& member = members_[static_cast<std::size_t>(m)];
    const RandomKey key = RandomKey(config_.seed)
                              .with("slim")
                              .with(static_cast<uint64_t>(m))
                              .with(static_cast<uint64_t>(member.exchanges++));
    const std::vector<uint32_t> explorers = internal::draw_others(
        key, config_.num_elements, {core_.begin(), core_.end()}, num_explorers_);
    std::set<std::size_t> part(core_.begin(), core_.end());
    part.insert(explorers.begin(), explorers.end());
    EXPECT_EQ(static_cast<int64_t>(part.size()), num_core_ + num_explorers_);
    return part;
  }

  void refresh() {
    std::vector<uint32_t> order(center_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::abs(center_[a]) + options_.weight * std::abs(last_[a]) >
             std::abs(center_[b]) + options_.weight * std::abs(last_[b]);
    });
    order.resize(static_cast<std::size_t>(num_core_));
    std::sort(order.begin(), order.end());
    num_changes_ += order == core_ ? 0 : 1;
    core_ = order;
  }

  Options options_;
  WorldConfig config_;
  Values center_, last_;
  int64_t num_core_ = 0;
  int64_t num_explorers_ = 0;
  std::vector<uint32_t> core_;
  std::vector<Member> members_;
  int64_t num_rounds_ = 0;
  int num_changes_ = 0;
};

// server = start + sum of sent / P and sent + residual = accumulated, in one.
void expect_conserved(RuleWorld& world) {
  const int num_members = world.config().num_members;
  Values sum = world.config().initial;
  for (int member = 0; member < num_members; ++member) {
    Values sent(sum.size());
    for (const Applied& applied : world.applied(member)) {
      std::transform(sent.begin(), sent.end(), applied.delta.begin(), sent.begin(), std::plus<>());
    }
    const Values residual = values_of(world.port(member).own_vector(kResidual));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += (sent[i] - residual[i]) / num_members;
    }
  }
  EXPECT_LE(distance(world.settled(), sum), 1e-14);
}

TEST(Slim, FollowsTheOracleAndConserves) {
  for (int num_members = 1; num_members <= 4; ++num_members) {
    for (const int64_t period : {1, 3}) {
      SCOPED_TRACE(testing::Message() << num_members << " members, period " << period);
      const Options options{.alpha = 0.4, .beta = 0.2, .period = period, .refresh = 2};
      const WorldConfig config = config_of(num_members, 53);
      RuleWorld world("slim", options.value(), config);
      Oracle oracle(options, config);
      // The last member has fewer steps, then none: it misses a new core.
      for (const auto& [most, last] : {std::pair{8, 5}, std::pair{7, 0}, std::pair{5, 11}}) {
        std::vector<int64_t> steps(static_cast<std::size_t>(num_members), most);
        steps.back() = last;
        world.run(steps);
        oracle.run(steps);
        EXPECT_LE(distance(world.settled(), oracle.center()), 1e-13);
        for (int member = 0; member < num_members; ++member) {
          EXPECT_LE(distance(world.weights(member), oracle.weights(member)), 1e-13);
          EXPECT_LE(distance(values_of(world.port(member).own_vector(kResidual)),
                             oracle.residual(member)),
                    1e-13);
        }
        expect_conserved(world);
      }
      EXPECT_GT(oracle.num_changes(), 2);
    }
  }
}

TEST(Slim, TheOrderOfArrivalHasNoPartInIt) {
  const Options options{.alpha = 0.5, .beta = 0.25, .period = 2, .refresh = 3};
  WorldConfig config = config_of(4, 40);
  config.is_double = false;
  config.order = Order::kLockStep;
  const std::vector<int64_t> steps = {11, 1, 30, 0};
  RuleWorld first("slim", options.value(), config);
  first.run(steps);
  first.run(4);
  config.order = Order::kTimed;
  config.in_place = true;
  config.duration_s = [](int member, int64_t /*step*/) { return member == 2 ? 10.0 : 1.0; };
  RuleWorld timed("slim", options.value(), config);
  timed.run(steps);
  timed.run(4);
  EXPECT_EQ(timed.settled(), first.settled());
  for (int member = 0; member < 4; ++member) {
    EXPECT_EQ(timed.weights(member), first.weights(member));
  }
}

TEST(Slim, AFullShareIsItsOwnFullExchangeInBitsAndBspToRounding) {
  for (int num_members = 1; num_members <= 4; ++num_members) {
    for (const bool is_double : {false, true}) {
      WorldConfig config = config_of(num_members, 61);
      config.is_double = is_double;
      config.momentum = 0.9;
      RuleWorld bsp("bsp", Value::map(), config);
      bsp.run(20);
      RuleWorld full("slim", Options{.alpha = 1, .beta = 1}.value(), config);
      full.run(20);
      EXPECT_LE(distance(full.settled(), bsp.settled()), is_double ? 1e-14 : 1e-6);
      for (const double beta : {0.0, 0.15, 0.5}) {
        RuleWorld world("slim", Options{.alpha = 1, .beta = beta, .refresh = 4}.value(), config);
        world.run(20);
        EXPECT_EQ(world.settled(), full.settled()) << beta;
        for (int member = 0; member < num_members; ++member) {
          EXPECT_EQ(world.weights(member), world.settled());
        }
      }
    }
  }
}

TEST(Slim, BytesByTheFormula) {
  const Options options{.alpha = 0.3, .beta = 0.15, .refresh = 4};
  constexpr int64_t kCore = 152;  // of 1010: 151.5 rounds up
  constexpr int64_t kExplorers = 152;
  WorldConfig config = config_of(3, 1010);
  for (const bool is_double : {false, true}) {
    config.is_double = is_double;
    RuleWorld world("slim", options.value(), config);
    world.run(10);  // two rounds refresh
    const int64_t round =
        is_double ? 8 * (kCore + kExplorers + kExplorers / 2) : 4 * kCore + 8 * kExplorers;
    const int64_t last = (is_double ? 8 : 4) * 1010 + 4 * kCore;
    for (int member = 0; member < 3; ++member) {
      EXPECT_EQ(world.counts(member).bytes, 10 * round);
    }
    EXPECT_EQ(world.counts(Port::kServer).bytes, 3 * (10 * round + 2 * 4 * kCore + last));
    world.run(1);  // no new core
    EXPECT_EQ(world.counts(Port::kServer).bytes,
              3 * (11 * round + 2 * 4 * kCore + last + last - 4 * kCore));
  }
}

// Deltas are normal draws, so that a residual is 0 just where something was sent.
TEST(Slim, ExplorersAreTheRestEquallyOftenAndInTime) {
  constexpr int kElements = 2000;
  constexpr int kRounds = 80;
  WorldConfig config = config_of(1, kElements);
  config.gradient = {};
  RuleWorld world("slim", Options{.refresh = 1000}.value(), config);
  std::vector<int> times(kElements), first(kElements);
  for (int round = 1; round <= kRounds; ++round) {
    world.run(1);
    const Values residual = values_of(world.port(0).own_vector(kResidual));
    EXPECT_EQ(std::count(residual.begin(), residual.end(), 0.0), 600);
    for (std::size_t i = 0; i < kElements; ++i) {
      times[i] += residual[i] == 0 ? 1 : 0;
      first[i] = first[i] == 0 && residual[i] == 0 ? round : first[i];
    }
  }
  // The core: the 300 largest weights at the start.
  std::vector<double> magnitudes;
  for (const double weight : config.initial) {
    magnitudes.push_back(std::abs(weight));
  }
  std::vector<uint32_t> in_core;
  double chi_square = 0;
  double rounds = 0;
  const double share = 300.0 / 1700;
  for (uint32_t i = 0; i < kElements; ++i) {
    if (times[i] == kRounds) {
      in_core.push_back(i);
      continue;
    }
    chi_square += std::pow(times[i] - kRounds * share, 2) / (kRounds * share * (1 - share));
    rounds += first[i];
  }
  EXPECT_EQ(in_core, internal::highest(magnitudes, 300));
  // 1699 degrees of freedom: mean 1699, deviation 58; 4 deviations.
  EXPECT_NEAR(chi_square * 1699 / 1700, 1699, 4 * 58);
  // (1 - beta)/(alpha - beta) rounds: 5.67, deviation 5.14 / sqrt(1700); 4 deviations.
  EXPECT_NEAR(rounds / 1700, 0.85 / 0.15, 0.5);
}

TEST(Slim, NothingButTheShareIsPulled) {
  WorldConfig config = config_of(2, 100);
  RuleWorld world("slim", Options{.alpha = 0.5, .beta = 0.5}.value(), config);
  world.run(6);
  const Values a = world.weights(0);
  const Values b = world.weights(1);
  const Values center = world.settled();
  int num_equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    num_equal += a[i] == center[i] && b[i] == center[i] ? 1 : 0;
    EXPECT_EQ(a[i] == b[i], a[i] == center[i]);
    EXPECT_TRUE(a[i] == b[i] || center[i] == config.initial[i]);
  }
  EXPECT_EQ(num_equal, 50);
}

TEST(Slim, VectorsWithoutAnythingToSend) {
  for (const int64_t num_elements : {0, 1, 2}) {
    const WorldConfig config = config_of(2, num_elements);
    RuleWorld world("slim", Options{.alpha = 0.2, .beta = 0.1, .refresh = 1}.value(), config);
    world.run(3);
    EXPECT_EQ(world.settled(), config.initial);
  }
}

std::unique_ptr<Rule> make(const Options& options) {
  const RuleEntry& entry = find_rule("slim");
  return entry.make({2, 0, settle_rule(entry, options.value())});
}

void play(Task task) {
  task.start();
  EXPECT_TRUE(task.done());
}

TEST(Slim, SizesAloneAreSentAlike) {
  // 20 elements: a core of 4, 2 explorers.
  const auto rule = make({.alpha = 0.3, .beta = 0.2, .refresh = 2});
  SizesPort member(0, 2, 20);
  member.given = {{8, {0}}, {12, {2}}, {20, {2}}, {4, {0}}};
  play(rule->begin(member));
  play(rule->step(member));
  play(rule->step(member));
  play(rule->finish(member));
  EXPECT_THAT(member.notes, ElementsAre("apply", "send 8 to server", "apply", "send 8 to server",
                                        "send 0 to server"));
  EXPECT_GT(member.charged, 100);

  SizesPort server(Port::kServer, 2, 20);
  server.given = {{8, {0}}, {8, {0}}, {8, {0}}, {0, {1}}, {8, {0}}, {0, {1}}};
  play(rule->serve(server));
  EXPECT_THAT(server.notes,
              ElementsAre("send 8 to 0", "send 8 to 1", "send 12 to 0", "send 8 to 0",
                          "send 20 to 0", "send 4 to 0", "send 20 to 1", "send 4 to 1"));
  EXPECT_GT(server.charged, 40);
}

TEST(Slim, RefusesOptionsOutsideTheirBounds) {
  const RuleEntry& entry = find_rule("slim");
  for (const auto& [key, value] :
       {std::pair{"alpha", 0.0}, std::pair{"alpha", 1.1}, std::pair{"beta", -0.1},
        std::pair{"beta", 0.31}, std::pair{"weight", -1.0}}) {
    Value given = Value::map();
    given.set(key, Value::of(value));
    const Error error = caught([&] { entry.make({2, 0, settle_rule(entry, given)}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << key;
    EXPECT_THAT(error.what(), HasSubstr(std::string("rule.") + key));
  }
  for (const char* key : {"period", "refresh"}) {
    Value given = Value::map();
    given.set(key, Value::of(0));
    EXPECT_THAT(caught([&] {
                  entry.make({2, 0, settle_rule(entry, given)});
                }).what(),
                HasSubstr(std::string("rule.") + key));
  }
}

TEST(Slim, RefusesVectorsThatKeysCannotCount) {
  const auto rule = make({});
  SizesPort port(0, 2, int64_t{1} << 32);
  Task begin = rule->begin(port);
  const Error error = caught([&] { begin.start(); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("4294967296"));
}

}  // namespace
}  // namespace millrace
