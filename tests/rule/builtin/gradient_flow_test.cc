#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "millrace/base/error.h"
#include "millrace/rule/rule.h"
#include "tests/base/caught.h"
#include "tests/rule/rule_world.h"
#include "tests/rule/sizes_port.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Options {
  double density = 1;
  int64_t threshold_kib = 0;
  int64_t chunk = 4;
  int64_t warmup = 0;
  int64_t ramp = 0;
  double momentum = 0;
  double decay = 0;

  Value value() const {
    Value all = Value::map();
    all.set("density", Value::of(density));
    all.set("threshold_kib", Value::of(threshold_kib));
    all.set("chunk", Value::of(chunk));
    all.set("warmup", Value::of(warmup));
    all.set("ramp", Value::of(ramp));
    all.set("momentum", Value::of(momentum));
    all.set("decay", Value::of(decay));
    return all;
  }
};

// Draws that the weights have no part in.
Values drawn(int64_t size, int member, int64_t step) {
  const RandomKey key =
      RandomKey(5).with(static_cast<uint64_t>(member)).with(static_cast<uint64_t>(step));
  Values values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(key.normal(static_cast<uint64_t>(i)));
  }
  return values;
}

// Sums of gradients of a quadratic with noise, over the member's samples.
double samples_of(int member, int64_t step) { return static_cast<double>((2 * member + step) % 4); }
Values gradient_of(int member, int64_t step, const Values& weights) {
  Values gradient = drawn(static_cast<int64_t>(weights.size()), member, step);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    gradient[i] = samples_of(member, step) * (0.5 * weights[i] + gradient[i]);
  }
  return gradient;
}

WorldConfig config_of(int num_members, int64_t num_elements, const Options& options) {
  WorldConfig config;
  config.num_members = num_members;
  config.num_elements = num_elements;
  config.initial = drawn(num_elements, 99, 0);
  config.momentum = options.momentum;
  config.decay = options.decay;
  config.order = Order::kRandom;
  config.lr_at = [](int64_t step) { return step < 4 ? 0.1 : 0.02; };
  config.own_samples = [](int member, int64_t step) { return 1 + samples_of(member, step); };
  return config;
}

Values mean_of(RuleWorld& world, std::size_t vector) {
  const int num_members = world.config().num_members;
  Values mean(static_cast<std::size_t>(world.config().num_elements));
  for (int member = 0; member < num_members; ++member) {
    const Values values = values_of(world.port(member).own_vector(vector));
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += values[i] / num_members;
    }
  }
  return mean;
}
constexpr std::size_t kVelocity = 0;
constexpr std::size_t kResidual = 1;

// --- dense

TEST(GradientFlow, FusedOrNotDenseTrainingIsBspBitForBit) {
  for (int num_members = 1; num_members <= 4; ++num_members) {
    for (const bool is_double : {false, true}) {
      const Options options{.momentum = 0.9, .decay = 0.01};
      WorldConfig config = config_of(num_members, 700, options);
      config.is_double = is_double;
      config.num_ranges = 7;
      RuleWorld bsp("bsp", Value::map(), config);
      bsp.run(5);
      for (const int64_t threshold_kib : {0, 1, 1000}) {
        config.seed = static_cast<uint64_t>(threshold_kib + 1);
        RuleWorld world("gradient-flow", Options{.threshold_kib = threshold_kib}.value(), config);
        world.run(3);
        world.run(2);
        EXPECT_EQ(world.settled(), bsp.settled()) << num_members << " " << threshold_kib;
      }
    }
  }
}

TEST(GradientFlow, DenseMessagesAreFusedAtTheThreshold) {
  // 7 ranges of 100 elements: 400 bytes in float32, 800 in float64; 1 KiB takes 3 or 2 of them.
  for (const auto& [is_double, threshold_kib, num_messages] :
       {std::tuple{false, 0, 7}, std::tuple{false, 1, 3}, std::tuple{true, 1, 4},
        std::tuple{false, 3, 1}}) {
    WorldConfig config = config_of(2, 700, {});
    config.is_double = is_double;
    config.num_ranges = 7;
    RuleWorld world("gradient-flow", Options{.threshold_kib = threshold_kib}.value(), config);
    world.run(10);
    EXPECT_EQ(world.counts(1).reductions, 10 * num_messages) << threshold_kib;
    EXPECT_EQ(world.counts(1).reduced_elements, 7000);
  }
}

std::unique_ptr<Rule> make(const Options& options) {
  const RuleEntry& entry = find_rule("gradient-flow");
  return entry.make({2, 0, settle_rule(entry, options.value())});
}

void ready(Rule& rule, Port& port, Range range, bool last) {
  Task task = rule.gradients_ready(port, range, last);
  task.start();
  EXPECT_TRUE(task.done());
}

void step(Rule& rule, Port& port) {
  Task task = rule.step(port);
  task.start();
  EXPECT_TRUE(task.done());
}

TEST(GradientFlow, ReductionsBeginDuringTheBackwardAndTheRestAtItsEnd) {
  const auto rule = make({.threshold_kib = 1});
  SizesPort port(0, 2, 1000);
  ready(*rule, port, {800, 1000}, false);
  EXPECT_THAT(port.notes, IsEmpty());
  ready(*rule, port, {700, 800}, false);
  EXPECT_THAT(port.notes, ElementsAre("reduce [700, 1000)"));
  ready(*rule, port, {500, 700}, false);
  ready(*rule, port, {300, 400}, false);
  ready(*rule, port, {0, 0}, true);
  EXPECT_THAT(port.notes,
              ElementsAre("reduce [700, 1000)", "reduce [500, 700)", "reduce [300, 400)"));
  step(*rule, port);
  EXPECT_EQ(port.notes.back(), "apply");
}

// --- sparse

// The rule as its source's section puts it, member by member, in float64.
class Oracle {
 public:
  Oracle(const Options& options, const WorldConfig& config)
      : options_(options), config_(config), weights_(config.initial) {
    const Values zeros(weights_.size());
    velocity_.assign(static_cast<std::size_t>(config.num_members), zeros);
    residual_ = velocity_;
    norms_.assign((weights_.size() + chunk() - 1) / chunk(), 0);
  }

  void update(int64_t number, double share) {
    const auto num_members = static_cast<std::size_t>(config_.num_members);
    double samples = 0;
    for (std::size_t m = 0; m < num_members; ++m) {
      samples += config_.own_samples(static_cast<int>(m), number);
    }
    for (std::size_t m = 0; m < num_members; ++m) {
      const auto member = static_cast<int>(m);
      Values gradient(weights_.size());
      if (config_.own_samples(member, number) > 0) {
        gradient = config_.gradient(member, number, weights_);
      }
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        velocity_[m][i] = options_.momentum * velocity_[m][i] +
                          static_cast<double>(num_members) / samples * gradient[i] +
                          options_.decay * weights_[i];
        residual_[m][i] += config_.lr_at(number) * velocity_[m][i];
      }
    }
    std::vector<std::size_t> order(norms_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return norms_[a] > norms_[b]; });
    order.resize(static_cast<std::size_t>(std::ceil(share * static_cast<double>(order.size()))));
    const std::set<std::size_t> mask(order.begin(), order.end());
    std::fill(norms_.begin(), norms_.end(), 0);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      double total = 0;
      for (std::size_t m = 0; m < num_members; ++m) {
        total += residual_[m][i];
        residual_[m][i] = mask.contains(i / chunk()) ? 0 : residual_[m][i];
        norms_[i / chunk()] += std::abs(residual_[m][i]);
      }
      weights_[i] -= mask.contains(i / chunk()) ? total / static_cast<double>(num_members) : 0;
    }
    num_sent_ = static_cast<int64_t>(mask.size());
  }

  const Values& weights() const { return weights_; }
  const Values& residual(int member) const { return residual_[static_cast<std::size_t>(member)]; }
  int64_t num_sent() const { return num_sent_; }

 private:
  std::size_t chunk() const { return static_cast<std::size_t>(options_.chunk); }

  Options options_;
  WorldConfig config_;
  Values weights_;
  std::vector<Values> velocity_, residual_;
  Values norms_;
  int64_t num_sent_ = 0;
};

TEST(GradientFlow, SparseTrainingFollowsTheFormulaAndConservesItsSum) {
  // 43 elements: ten chunks of 4 and one of 3.
  const Options options{.density = 0.3, .chunk = 4, .momentum = 0.9, .decay = 0.01};
  for (int num_members = 1; num_members <= 4; ++num_members) {
    SCOPED_TRACE(num_members);
    WorldConfig config = config_of(num_members, 43, options);
    config.gradient = gradient_of;
    config.own_samples = [](int member, int64_t step) {
      return member == 0 ? 1 + samples_of(member, step) : samples_of(member, step);
    };
    config.num_ranges = 5;
    RuleWorld world("gradient-flow", options.value(), config);
    Oracle oracle(options, config);
    Values expected(43);  // sum of lr x mean velocity
    for (int64_t number = 0; number < 30; ++number) {
      world.run(1);
      oracle.update(number, 0.3);
      const Values velocity = mean_of(world, kVelocity);
      const Values residual = mean_of(world, kResidual);
      Values conserved(43);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += config.lr_at(number) * velocity[i];
        conserved[i] = config.initial[i] - world.weights(0)[i] + residual[i];
      }
      EXPECT_LE(distance(conserved, expected), 1e-14);
      for (int member = 0; member < num_members; ++member) {
        EXPECT_EQ(world.weights(member), world.weights(0));
        EXPECT_LE(distance(world.weights(member), oracle.weights()), 1e-14);
        EXPECT_LE(
            distance(values_of(world.port(member).own_vector(kResidual)), oracle.residual(member)),
            1e-14);
      }
      EXPECT_EQ(oracle.num_sent(), 4);
    }
    EXPECT_GT(distance(mean_of(world, kResidual), Values(43)), 1e-3);
  }
}

TEST(GradientFlow, WeightsLessTheMeanResidualAreThoseOfDenseTraining) {
  const Options options{.density = 0.2, .momentum = 0.9};
  WorldConfig config = config_of(3, 50, options);
  RuleWorld dense("bsp", Value::map(), config);
  dense.run(20);
  RuleWorld sparse("gradient-flow", options.value(), config);
  sparse.run(20);
  Values difference = sparse.settled();
  const Values residual = mean_of(sparse, kResidual);
  for (std::size_t i = 0; i < difference.size(); ++i) {
    difference[i] -= residual[i];
  }
  EXPECT_LE(distance(difference, dense.settled()), 1e-14);
  EXPECT_GT(distance(sparse.settled(), dense.settled()), 1e-2);
}

// 0.99 of 11 chunks is all of them, by the path of packed chunks.
TEST(GradientFlow, AFullMaskIsMomentumSgdToRounding) {
  const Options options{.density = 0.99, .momentum = 0.9, .decay = 0.01};
  for (int num_members = 1; num_members <= 4; ++num_members) {
    WorldConfig config = config_of(num_members, 43, options);
    RuleWorld dense("bsp", Value::map(), config);
    dense.run(20);
    RuleWorld full("gradient-flow", options.value(), config);
    full.run(20);
    EXPECT_LE(distance(full.settled(), dense.settled()), 1e-14);
    EXPECT_EQ(full.counts(0).reduced_elements, 20 * 43);  // no norms
  }
}

TEST(GradientFlow, PackedChunksAreFusedWithoutAChangeOfBits) {
  const Options options{.density = 0.5, .chunk = 10, .momentum = 0.9};
  WorldConfig config = config_of(4, 1000, options);
  config.is_double = false;
  config.num_ranges = 20;
  RuleWorld single("gradient-flow", options.value(), config);
  single.run(10);
  Options fused_options = options;
  fused_options.threshold_kib = 1;  // 26 chunks
  config.seed = 3;
  config.in_place = true;
  RuleWorld fused("gradient-flow", fused_options.value(), config);
  fused.run(10);
  EXPECT_EQ(fused.settled(), single.settled());
  EXPECT_EQ(fused.counts(0).reduced_elements, single.counts(0).reduced_elements);
  EXPECT_GT(single.counts(0).reductions, 100);
  EXPECT_EQ(fused.counts(0).reductions, 10 * (2 + 1));
}

// lenet at 90% sparsity: at most 10% of the dense elements, the norms and one chunk.
TEST(GradientFlow, NineTenthsSparseSendsATenth) {
  constexpr int64_t kLenet = 431080;
  constexpr int64_t kChunk = 4096;
  const Options options{.density = 0.1, .threshold_kib = 64, .chunk = kChunk};
  WorldConfig config = config_of(2, kLenet, options);
  config.is_double = false;
  config.num_ranges = 8;
  config.gradient = [](int member, int64_t step, const Values& weights) {
    return Values(weights.size(), static_cast<double>(member + step));
  };
  RuleWorld world("gradient-flow", options.value(), config);
  world.run(5);
  const int64_t num_chunks = (kLenet + kChunk - 1) / kChunk;
  const int64_t sent = world.counts(0).reduced_elements;
  EXPECT_LE(sent, 5 * (kLenet / 10 + num_chunks + kChunk));
  EXPECT_GE(sent, 5 * (kLenet / 10 + num_chunks - kChunk));
}

TEST(GradientFlow, WarmUpSendsAllAndThenLessAndLess) {
  const Options options{
      .density = 0.1, .chunk = 1, .warmup = 3, .ramp = 2, .momentum = 0.5, .decay = 0.1};
  WorldConfig config = config_of(2, 10, options);
  RuleWorld world("gradient-flow", options.value(), config);
  RuleWorld dense("bsp", Value::map(), config);
  std::vector<int64_t> sent;
  for (int update = 0; update < 7; ++update) {
    const int64_t before = world.counts(0).reduced_elements;
    world.run(1);
    dense.run(1);
    sent.push_back(world.counts(0).reduced_elements - before);
    if (update < 3) {
      EXPECT_LE(distance(world.settled(), dense.settled()), 1e-15);
    }
  }
  // Norms, 10 of them, from the first update on that leaves something behind.
  EXPECT_THAT(sent, ElementsAre(10, 10, 10, 7 + 10, 4 + 10, 1 + 10, 1 + 10));
}

TEST(GradientFlow, SegmentsChangeNothing) {
  const Options options{.density = 0.3, .momentum = 0.9};
  const WorldConfig config = config_of(3, 43, options);
  RuleWorld once("gradient-flow", options.value(), config);
  once.run(9);
  RuleWorld thrice("gradient-flow", options.value(), config);
  thrice.run(4);
  thrice.run(0);
  thrice.run(5);
  EXPECT_EQ(thrice.settled(), once.settled());
}

TEST(GradientFlow, SizesAloneAreSentAlike) {
  const auto rule = make({.density = 0.5, .chunk = 4});
  SizesPort port(0, 2, 18);  // 5 chunks, 3 sent: the lowest
  Task begin = rule->begin(port);
  begin.start();
  ready(*rule, port, {10, 18}, false);
  EXPECT_THAT(port.notes, IsEmpty());
  ready(*rule, port, {3, 10}, false);
  ready(*rule, port, {0, 3}, false);
  ready(*rule, port, {0, 0}, true);
  step(*rule, port);
  EXPECT_THAT(port.notes, ElementsAre("reduce [0, 8)", "reduce [8, 12)", "reduce [0, 5)"));
  EXPECT_GT(port.charged, 18);
}

TEST(GradientFlow, RefusesOptionsOutsideTheirBounds) {
  const RuleEntry& entry = find_rule("gradient-flow");
  for (const auto& [key, value] :
       {std::pair{"density", Value::of(0.0)}, std::pair{"density", Value::of(1.5)},
        std::pair{"chunk", Value::of(0)}, std::pair{"threshold_kib", Value::of(-1)},
        std::pair{"warmup", Value::of(-1)}, std::pair{"ramp", Value::of(-1)},
        std::pair{"momentum", Value::of(1.0)}, std::pair{"momentum", Value::of(-0.5)},
        std::pair{"decay", Value::of(-2.0)}}) {
    Value given = Value::map();
    given.set(key, value);
    const Error error = caught([&] { entry.make({2, 0, settle_rule(entry, given)}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << key;
    EXPECT_THAT(error.what(), HasSubstr(std::string("rule.") + key));
  }
}

}  // namespace
}  // namespace millrace
