// The cases that users of such systems hit, by their kind: gradient scale, small last parts, few
// microbatches, weight versions, evaluation counts.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/schedule/registry.h"
#include "millrace/train/oracle.h"
#include "millrace/train/session.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using testing::config_of;
using testing::plan_of;
using testing::state_of;

double scalar(Session& session, const std::string& name) {
  return state_of(session).at(name).item<double>();
}

// C01: x = 1..4, gradient 7.5, w = 1 - 0.1 * 7.5.
TEST(GradientScale, SplittingABatchIsInvisible) {
  const Model model = testing::lin();
  const testing::TensorData data = testing::count_to(4);
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    for (const std::vector<int>& stages : {std::vector<int>{2}, {1, 1}}) {
      for (const int replicas : {1, 2, 4}) {
        for (const int microbatches : {1, 2, 3, 4}) {
          if (microbatches * replicas > 4) {
            continue;
          }
          Session session({.model = &model,
                           .plan = plan_of(model, stages, replicas, schedule, microbatches),
                           .policy = "",
                           .train = config_of(4)});
          session.train(data, SampleOrder(4, 4, 1), 0, 0, 1, {});
          EXPECT_NEAR(scalar(session, "w.w"), 0.25, 1e-15)
              << schedule << " S=" << stages.size() << " R=" << replicas << " M=" << microbatches;
        }
      }
    }
  }
}

// C04: x = 1..5 in two parts of 3 and 2: gradient 11, not the mean of part-means.
TEST(SmallLastParts, EveryPartWeighsByItsSamples) {
  const Model model = testing::lin();
  const testing::TensorData data = testing::count_to(5);
  for (const int microbatches : {1, 2, 3, 4, 5}) {
    Session session({.model = &model,
                     .plan = plan_of(model, {1, 1}, 1, "1f1b", microbatches),
                     .policy = "",
                     .train = config_of(5)});
    session.train(data, SampleOrder(5, 5, 1), 0, 0, 1, {});
    EXPECT_NEAR(scalar(session, "w.w"), 1 - 0.1 * 11, 1e-14) << microbatches;
  }
}

// C04: 13 samples in batches of 5, 5, 3 over two epochs; also more parts than the last batch has
// samples.
TEST(SmallLastParts, TheLastSmallerBatchIsUsedAndEqualsTheOracle) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(13);
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    for (const int replicas : {1, 2}) {
      for (const int microbatches : {1, 2, 5}) {
        if (microbatches * replicas > 5) {
          continue;
        }
        const TrainConfig config = config_of(5);
        Session session({.model = &model,
                         .plan = plan_of(model, {3, 4}, replicas, schedule, microbatches),
                         .policy = "",
                         .train = config});
        const SampleOrder order(13, 5, 1);
        WholeBatchOracle oracle(model, config);
        std::vector<at::Tensor> weights;
        for (const NamedTensor& tensor : session.state()) {
          weights.push_back(tensor.tensor.clone());
        }
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
          int64_t samples = 0;
          EXPECT_EQ(session.train(
                        data, order, epoch, 0, order.steps_per_epoch(),
                        {.on_step = [&](int64_t, const LossSums& sums) { samples += sums.samples; },
                         .stop_requested = {}}),
                    3);
          EXPECT_EQ(samples, 13);
          const std::vector<int64_t> all = order.epoch(epoch);
          for (int64_t step = 0; step < 3; ++step) {
            weights =
                oracle
                    .step(weights, data, all.data() + order.step_begin(step), order.step_size(step))
                    .stages.at(0)
                    .weights;
          }
        }
        std::size_t p = 0;
        for (const NamedTensor& tensor : session.state()) {
          EXPECT_LE(testing::relative_difference(tensor.tensor, weights[p]), 1e-9)
              << schedule << " " << tensor.name;
          ++p;
        }
      }
    }
  }
}

// All stages' weights, of a step after which all updated.
std::vector<at::Tensor> weights_of(const StepFacts& facts) {
  std::vector<at::Tensor> weights;
  for (const auto& [stage, update] : facts.stages) {
    weights.insert(weights.end(), update.weights.begin(), update.weights.end());
  }
  return weights;
}

// C03: fewer microbatches than stages, every schedule with a flush.
TEST(FewMicrobatches, AnyNumberFromOneWorksOnFourStages) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(12);
  for (const ScheduleEntry& entry : schedules()) {
    if (!entry.builtin->deals) {
      continue;  // several stages a rank, split backwards, or a policy of its own
    }
    for (const int microbatches : {1, 2, 3}) {
      const ScheduleConfig shape{.num_ranks = 4, .num_microbatches = microbatches};
      if (entry.builtin->offers(shape)) {
        continue;  // refused with a reason, which tests/schedule checks
      }
      const TrainConfig config = config_of(6, 0.05);
      const Plan plan = plan_of(model, {2, 2, 2, 1}, 1, entry.name, microbatches);
      Session session({.model = &model, .plan = plan, .policy = "", .train = config});
      std::vector<at::Tensor> weights;
      for (const NamedTensor& tensor : session.state()) {
        weights.push_back(tensor.tensor.clone());
      }
      const SampleOrder order(12, 6, 1);
      ASSERT_EQ(session.train(data, order, 0, 0, 2, {}), 2);
      const std::vector<int64_t> all = order.epoch(0);
      const bool flush = make_schedule(entry.name, shape).flush;
      WholeBatchOracle whole(model, config);
      DelayedSgdOracle delayed(model, plan, false, config);
      for (int64_t step = 0; step < 2; ++step) {
        const int64_t* indices = all.data() + order.step_begin(step);
        weights = flush ? whole.step(weights, data, indices, 6).stages.at(0).weights
                        : weights_of(delayed.step(data, indices, 6, step == 1));
      }
      std::size_t p = 0;
      for (const NamedTensor& tensor : session.state()) {
        EXPECT_LE(testing::relative_difference(tensor.tensor, weights[p]), flush ? 1e-9 : 0)
            << entry.name << " M=" << microbatches << " " << tensor.name;
        ++p;
      }
    }
  }
}

// C05: three minibatches of x = 1 through a stage of a * b and one of w.
class WeightVersionsOfProd : public ::testing::Test {
 protected:
  std::map<std::string, at::Tensor> train(const std::vector<int>& stages,
                                          const std::string& policy) {
    const Model model = testing::prod();
    const testing::TensorData data(at::ones_like(at::zeros({3, 1}, at::kDouble)),
                                   at::zeros({3, 1}, at::kDouble));
    Session session({.model = &model,
                     .plan = plan_of(model, stages, 1, "pipedream"),
                     .policy = policy,
                     .train = config_of(1)});
    session.train(data, SampleOrder(3, 1, 1), 0, 0, 3, {});
    return state_of(session);
  }
};

TEST_F(WeightVersionsOfProd, StashGivesTheKnownAnswer) {
  const auto state = train({1, 1}, "stash");
  EXPECT_NEAR(state.at("ab.a").item<double>(), 0.738, 1e-15);
  EXPECT_NEAR(state.at("ab.b").item<double>(), 0.738, 1e-15);
  EXPECT_NEAR(state.at("w.w").item<double>(), 0.719, 1e-15);
}

TEST_F(WeightVersionsOfProd, LatestGivesTheKnownWrongAnswer) {
  const auto state = train({1, 1}, "latest");
  EXPECT_NEAR(state.at("ab.a").item<double>(), 0.75348, 1e-15);
  EXPECT_NEAR(state.at("ab.b").item<double>(), 0.75348, 1e-15);
}

TEST_F(WeightVersionsOfProd, OneStageIsPlainSgd) {
  const auto state = train({2}, "stash");
  for (const char* name : {"ab.a", "ab.b", "w.w"}) {
    EXPECT_NEAR(state.at(name).item<double>(), 0.7519239, 1e-7) << name;
  }
}

// C05: on any straight pipeline, bit for bit, for many minibatches with momentum.
TEST(WeightStashing, EqualsDelayedSgdBitForBitOn200Minibatches) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(803);
  for (const std::vector<int>& stages :
       {std::vector<int>{7}, {3, 4}, {2, 2, 3}, {1, 2, 2, 2}, {1, 1, 1, 1, 1, 1, 1}}) {
    TrainConfig config = config_of(4, 0.02);
    config.momentum = 0.9;
    config.weight_decay = 0.001;
    const Plan plan = plan_of(model, stages, 1, "pipedream");
    Session session({.model = &model, .plan = plan, .policy = "", .train = config});
    const SampleOrder order(803, 4, 5);
    ASSERT_EQ(order.steps_per_epoch(), 201);
    ASSERT_EQ(session.train(data, order, 0, 0, 201, {}), 201);
    DelayedSgdOracle oracle(model, plan, false, config);
    const std::vector<int64_t> all = order.epoch(0);
    StepFacts facts;
    for (int64_t step = 0; step < 201; ++step) {
      facts = oracle.step(data, all.data() + order.step_begin(step), order.step_size(step),
                          step == 200);
    }
    const std::vector<at::Tensor> expected = weights_of(facts);
    std::size_t p = 0;
    for (const NamedTensor& tensor : session.state()) {
      if (tensor.name.find('/') == std::string::npos) {
        EXPECT_TRUE(at::equal(tensor.tensor, expected[p])) << tensor.name;
        ++p;
      }
    }
    EXPECT_EQ(p, expected.size());
    for (int rank = 0; rank < plan.workers; ++rank) {
      EXPECT_EQ(session.worker(rank).held(rank).versions.peak_live(), plan.workers - rank);
    }
  }
}

// C12: no layer vanishes in an uneven split.
TEST(UnevenSplit, EveryParameterIsTrainedWhateverTheCut) {
  const Model model = testing::mlp4();
  for (const std::vector<int>& stages : {std::vector<int>{7},
                                         {4, 3},
                                         {3, 2, 2},
                                         {2, 2, 2, 1},
                                         {2, 1, 1, 1, 1, 1},
                                         {1, 1, 1, 1, 1, 1, 1}}) {
    Session session({.model = &model,
                     .plan = plan_of(model, stages, 1, "1f1b"),
                     .policy = "",
                     .train = config_of(4)});
    int64_t elements = 0;
    for (const NamedTensor& tensor : session.state()) {
      elements += tensor.tensor.numel();
    }
    EXPECT_EQ(elements, model.num_parameters());
  }
  Plan gap = plan_of(model, {4, 3}, 1, "1f1b");
  gap.stages[1].layers.erase(gap.stages[1].layers.begin());
  EXPECT_THROW(Session({.model = &model, .plan = gap, .policy = "", .train = config_of(4)}), Error);
}

// C16: 21 samples of which exactly 7 are classified right.
TEST(Evaluation, CountsEverySampleOnceWhateverTheLayout) {
  at::Tensor x = at::zeros({21, 3}, at::kDouble);
  at::Tensor y = at::zeros({21}, at::kLong);
  for (int64_t i = 0; i < 21; ++i) {
    x[i][i % 3] = 2.0;  // predicted class
    y.data_ptr<int64_t>()[i] =
        i % 3 == 1 ? 1 : (i % 3 + 1) % 3;  // right only for class 1: 7 samples
  }
  const testing::TensorData data(x, y, 3);
  Model model;
  model.name = "fixed";
  model.input = {{3}, at::kDouble};
  model.target = {{}, at::kLong};
  model.layers.push_back(std::make_unique<testing::Scale>("first"));
  model.layers.push_back(std::make_unique<testing::Scale>("second"));
  model.loss = cross_entropy();
  for (const std::vector<int>& stages : {std::vector<int>{2}, {1, 1}}) {
    for (const int replicas : {1, 2, 4}) {
      for (const int64_t batch : {1, 4, 8, 21, 50}) {
        Session session({.model = &model,
                         .plan = plan_of(model, stages, replicas, "1f1b"),
                         .policy = "",
                         .train = config_of(8)});
        const LossSums sums = session.evaluate(data, batch);
        EXPECT_EQ(sums.samples, 21);
        EXPECT_EQ(sums.correct, 7);
        EXPECT_NEAR(static_cast<double>(sums.correct) / static_cast<double>(sums.samples), 1.0 / 3,
                    1e-15);
        const LossSums again = session.evaluate(data, 5);
        EXPECT_NEAR(again.loss, sums.loss, 1e-12);
      }
    }
  }
}

// C17's kind: replicas are bit-equal after every step, with different parts on each.
TEST(Replicas, HoldTheSameBitsAfterTraining) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(50);
  TrainConfig config = config_of(10);
  config.momentum = 0.9;
  const Plan plan = plan_of(model, {3, 4}, 2, "1f1b", 4);
  Session session({.model = &model, .plan = plan, .policy = "", .train = config});
  session.train(data, SampleOrder(50, 10, 1), 0, 0, 5, {});
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    EXPECT_TRUE(at::equal(session.held(stage, 0).versions.newest(),
                          session.held(stage, 1).versions.newest()));
  }
  // One reduction a step and stage, no more.
  for (const RankTrace& rank : session.trace().ranks) {
    int reductions = 0;
    for (const TraceEvent& event : rank.events) {
      reductions += event.action.kind == ActionKind::kReduce ? 1 : 0;
    }
    EXPECT_EQ(reductions, 5);
  }
}

}  // namespace
}  // namespace millrace
