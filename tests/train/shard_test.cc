// Sharded state on the real runtime: the same training as bsp, checkpoints between layouts, and the
// bytes that are really held.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "millrace/train/internal/recorded_run.h"
#include "millrace/train/session.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

constexpr Shard kShards[] = {Shard::kZero1, Shard::kZero2, Shard::kZero3};

TrainConfig config_of(const std::string& optimizer, bool clips) {
  TrainConfig config = testing::config_of(8, optimizer == "sgd" ? 0.05 : 0.01);
  config.optimizer = optimizer;
  if (optimizer == "sgd") {
    config.momentum = 0.9;
  }
  if (clips) {
    config.clip_norm = 0.5;
  }
  return config;
}

// Stages of so many layers, each on all of `replicas` ranks.
Plan units(const Model& model, const std::vector<int>& sizes, int replicas, int microbatches) {
  Plan plan = testing::plan_of(model, sizes, 1, "breadth-first", microbatches);
  for (PlanStage& stage : plan.stages) {
    stage.ranks.resize(static_cast<std::size_t>(replicas));
    std::iota(stage.ranks.begin(), stage.ranks.end(), 0);
  }
  plan.workers = replicas;
  return plan;
}

// Two copies of two ranks that hold two stages each, visited microbatch by microbatch.
Plan interleaved(const Model& model) {
  Plan plan = testing::plan_of(model, {2, 2, 2, 1}, 1, "1f1b-interleaved", 4);
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const int rank = static_cast<int>(stage % 2);
    plan.stages[stage].ranks = {rank, rank + 2};
  }
  plan.workers = 4;
  return plan;
}

struct Trained {
  std::map<std::string, at::Tensor> state;
  double loss = 0;  // sum over all steps
  double evaluated = 0;
};

Trained train(const Model& model, const Plan& plan, const TrainConfig& config) {
  const testing::TensorData data = testing::mlp4_data(404);  // a short last step
  const SampleOrder order(404, 8, 1);
  Session session({.model = &model, .plan = plan, .policy = "", .train = config});
  Trained trained;
  StepHooks hooks;
  hooks.on_step = [&](int64_t, const LossSums& sums) { trained.loss += sums.loss; };
  EXPECT_EQ(session.train(data, order, 0, 0, 30, hooks), 30);
  trained.evaluated = session.evaluate(data, 16).loss;
  // Training goes on as if nothing had been evaluated or saved.
  testing::state_of(session);
  EXPECT_EQ(session.train(data, order, 0, 30, 21, hooks), 21);
  trained.state = testing::state_of(session);
  return trained;
}

void compare(const Trained& own, const Trained& expected, double tolerance,
             const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_NEAR(own.loss, expected.loss, tolerance * expected.loss);
  EXPECT_NEAR(own.evaluated, expected.evaluated, tolerance * expected.evaluated);
  ASSERT_EQ(own.state.size(), expected.state.size());
  for (const auto& [name, tensor] : expected.state) {
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(own.state.at(name), tensor)) << name;
    } else {
      EXPECT_LE(testing::relative_difference(own.state.at(name), tensor), tolerance) << name;
    }
  }
}

// With one REDUCE a stage and step and no norm, sums are added in the order of bsp's.
TEST(ShardedTraining, EqualsBspBitForBitWhereSumsAreAddedInOneOrder) {
  const Model model = testing::mlp4();
  for (const std::string optimizer : {"sgd", "adam"}) {
    const TrainConfig config = config_of(optimizer, false);
    for (const int replicas : {2, 4}) {
      for (const std::vector<int>& sizes : {std::vector<int>{7}, std::vector<int>{2, 2, 2, 1}}) {
        Plan plan = units(model, sizes, replicas, 2);
        const Trained expected = train(model, plan, config);
        for (const Shard shard : kShards) {
          plan.shard = shard;
          compare(train(model, plan, config), expected, 0,
                  optimizer + " " + to_string(shard) + " on " + std::to_string(replicas));
        }
      }
    }
  }
}

// The bound of the ZeRO rows is 1e-5 by max-norm; float64 does better.
TEST(ShardedTraining, EqualsBspInPipelinesAndWithClipping) {
  const Model model = testing::mlp4();
  const Plan plans[] = {testing::plan_of(model, {3, 4}, 2, "1f1b", 2), interleaved(model),
                        units(model, {2, 2, 2, 1}, 2, 2)};
  for (const std::string optimizer : {"sgd", "adam"}) {
    for (const bool clips : {false, true}) {
      for (Plan plan : plans) {
        const TrainConfig config = config_of(optimizer, clips);
        const Trained expected = train(model, plan, config);
        for (const Shard shard : kShards) {
          plan.shard = shard;
          compare(train(model, plan, config), expected, optimizer == "sgd" ? 1e-9 : 1e-7,
                  plan.schedule + " " + optimizer + " " + to_string(shard));
        }
      }
    }
  }
}

// A checkpoint knows nothing of shards.
TEST(ShardedTraining, GoesOnFromAnyLayoutBitForBit) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(160);
  const SampleOrder order(160, 8, 1);
  const TrainConfig config = config_of("adam", false);
  const auto session_of = [&](Shard shard) {
    Plan plan = units(model, {2, 2, 2, 1}, 2, 2);
    plan.shard = shard;
    return Session({.model = &model, .plan = plan, .policy = "", .train = config});
  };
  Session whole = session_of(Shard::kNothing);
  whole.train(data, order, 0, 0, 20, {});
  const std::map<std::string, at::Tensor> expected = testing::state_of(whole);
  const std::pair<Shard, Shard> ways[] = {{Shard::kNothing, Shard::kZero3},
                                          {Shard::kZero3, Shard::kNothing},
                                          {Shard::kZero3, Shard::kZero1},
                                          {Shard::kZero1, Shard::kZero2},
                                          {Shard::kZero2, Shard::kZero3}};
  for (const auto& [from, to] : ways) {
    SCOPED_TRACE(std::string(to_string(from)) + " to " + to_string(to));
    Session first = session_of(from);
    first.train(data, order, 0, 0, 10, {});
    Session second = session_of(to);
    for (const auto& [name, tensor] : testing::state_of(first)) {
      ASSERT_TRUE(second.load(name, tensor)) << name;
    }
    EXPECT_FALSE(second.load("linear9.weight", expected.begin()->second));
    EXPECT_THROW(second.load("linear2.weight/m", at::zeros({3}, at::kDouble)), Error);
    second.train(data, order, 0, 10, 10, {});
    for (const auto& [name, tensor] : testing::state_of(second)) {
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
    }
  }
}

// What `verify` compares: all of every gradient and weight, from every replica; and its fault
// shows.
TEST(ShardedTraining, AnObserverSeesWholeGradientsAndWeights) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(40);
  const SampleOrder order(40, 8, 1);
  const TrainConfig config = config_of("sgd", false);
  Plan plan = units(model, {3, 4}, 2, 2);
  internal::RecordedRun expected;
  Session whole({.model = &model, .plan = plan, .policy = "", .train = config});
  whole.train(data, order, 0, 0, 5, {}, &expected);
  for (const Shard shard : kShards) {
    plan.shard = shard;
    for (const bool divides_twice : {false, true}) {
      Session session({.model = &model,
                       .plan = plan,
                       .policy = "",
                       .train = config,
                       .divide_twice = divides_twice});
      internal::RecordedRun recording;
      session.train(data, order, 0, 0, 5, {}, &recording);
      for (int stage = 0; stage < 2; ++stage) {
        for (int replica = 0; replica < 2; ++replica) {
          SCOPED_TRACE(std::string(to_string(shard)) + " stage " + std::to_string(stage));
          const auto& calls = recording.calls(stage, replica);
          ASSERT_EQ(calls.size(), 5U);
          for (std::size_t step = 0; step < calls.size(); ++step) {
            const auto& other = expected.calls(stage, 0)[step];
            EXPECT_EQ(calls[step].step, other.step);
            EXPECT_EQ(at::equal(calls[step].mean_gradient, other.mean_gradient), !divides_twice);
            const auto number = static_cast<int64_t>(step);
            EXPECT_EQ(at::equal(recording.after(stage, replica).at(number),
                                expected.after(stage, 0).at(number)),
                      !divides_twice);
          }
          EXPECT_TRUE(at::equal(calls.front().before, expected.calls(stage, 0).front().before));
        }
      }
    }
  }
}

// Four linear layers of 64 x 64 in float32 and data for them.
Model square_layers() {
  Model model;
  model.name = "square";
  model.input = {{64}, at::kFloat};
  model.target = {{64}, at::kFloat};
  for (int l = 0; l < 4; ++l) {
    model.layers.push_back(linear("linear" + std::to_string(l), 64, 64));
  }
  model.loss = half_squared_error();
  return model;
}

// Source: ZeRO, SC'20, section 5, in float32: weights W, gradients G, optimizer state O of 4, 4 and
// 4 (momentum) or 8 (Adam) bytes a parameter; stage 1 W + G + O/P, stage 2 W + (G+O)/P and a unit
// of gradients, stage 3 (W+G+O)/P and a unit of weights and of gradients.
TEST(ShardedTraining, HoldsTheBytesOfTheFormulas) {
  const Model model = square_layers();
  at::Tensor x = at::full({32, 64}, 0.01, at::kFloat);
  const testing::TensorData data(x, x);
  const SampleOrder order(32, 8, 1);
  const double n = 4.0 * static_cast<double>(model.num_parameters());
  for (const std::string optimizer : {"sgd", "adam"}) {
    TrainConfig config = config_of(optimizer, false);
    config.dtype = "float32";
    const double o = optimizer == "sgd" ? n : 2 * n;
    for (const int replicas : {2, 4}) {
      for (const int chunks : {1, 4}) {
        Plan plan = units(model, std::vector<int>(static_cast<std::size_t>(chunks), 4 / chunks),
                          replicas, 2);
        const double p = replicas;
        const double unit = n / chunks;
        const std::map<Shard, std::vector<double>> formulas = {
            {Shard::kNothing, {n, n, o}},
            {Shard::kZero1, {n, n, o / p}},
            {Shard::kZero2, {n, n / p + unit, o / p}},
            {Shard::kZero3, {n / p + unit, n / p + unit, o / p}}};
        for (const auto& [shard, formula] : formulas) {
          plan.shard = shard;
          Session session({.model = &model, .plan = plan, .policy = "", .train = config});
          ASSERT_EQ(session.train(data, order, 0, 0, 4, {}), 4);
          for (int rank = 0; rank < replicas; ++rank) {
            SCOPED_TRACE(std::string(to_string(shard)) + " " + optimizer + " rank " +
                         std::to_string(rank) + " of " + std::to_string(replicas));
            const MemoryUse& use = session.worker(rank).peak_memory();
            EXPECT_NEAR(static_cast<double>(use.weight_bytes), formula[0], 0.1 * formula[0]);
            EXPECT_NEAR(static_cast<double>(use.gradient_bytes), formula[1], 0.1 * formula[1]);
            EXPECT_NEAR(static_cast<double>(use.optimizer_bytes), formula[2], 0.1 * formula[2]);
          }
          // Between steps, what is kept.
          const double kept = static_cast<double>(session.held(0).memory().weight_bytes);
          EXPECT_NEAR(kept, shard == Shard::kZero3 ? unit / p : unit, 0.1 * unit / p);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
