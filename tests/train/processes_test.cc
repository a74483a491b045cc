// Sessions whose ranks live in several processes (worlds of their own here, joined by real Gloo
// connections) against the same ranks in one process.
#if __has_include(<gloo/context.h>)
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <numeric>

#include "millrace/base/clock.h"
#include "tests/comm/joined/joined_testing.h"
#include "tests/support/torch/tiny.h"
#include "tests/train/train_testing.h"

namespace millrace {
namespace {

using testing::plan_of;
using testing::state_of;

TrainConfig config_of(int64_t batch) {
  TrainConfig config = testing::config_of(batch, 0.05);
  config.momentum = 0.9;
  return config;
}

struct Outcome {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses;
  LossSums evaluated;
  Trace trace;
  std::vector<int64_t> steps;  // by process
};

// Trains and evaluates with `num_processes` sessions at once; what the leading one knows.
Outcome run(const Model& model, const Plan& plan, const TrainConfig& config,
            const testing::TensorData& data, int num_processes, int64_t num_steps,
            const StepHooks& extra = {}) {
  Worlds worlds = joined_worlds(plan.workers, num_processes, 60);
  const SampleOrder order(data.size(), config.batch, 1);
  Outcome outcome;
  outcome.steps.resize(static_cast<std::size_t>(num_processes));
  const auto errors = run_ranks(num_processes, [&](int process) {
    JoinedWorld& world = *worlds[static_cast<std::size_t>(process)];
    Session session(
        {.model = &model, .world = &world, .plan = plan, .policy = "", .train = config});
    StepHooks hooks = extra;
    hooks.on_step = [&](int64_t step, const LossSums& sums) {
      EXPECT_EQ(process, 0) << "steps are told where the run is led";
      EXPECT_EQ(step, static_cast<int64_t>(outcome.losses.size()));
      outcome.losses.push_back(sums.loss);
      if (extra.on_step) {
        extra.on_step(step, sums);
      }
    };
    outcome.steps[static_cast<std::size_t>(process)] =
        session.train(data, order, 0, 0, num_steps, hooks);
    const LossSums evaluated = session.evaluate(data, 7);
    std::map<std::string, at::Tensor> state = state_of(session);
    const Trace trace = session.trace();
    if (process == 0) {
      outcome.state = std::move(state);
      outcome.evaluated = evaluated;
      outcome.trace = trace;
    } else {
      EXPECT_EQ(evaluated.samples, data.size());
    }
    world.close(30);
  });
  EXPECT_EQ(thrown(errors), "");
  return outcome;
}

Outcome run_alone(const Model& model, const Plan& plan, const TrainConfig& config,
                  const testing::TensorData& data, int64_t num_steps) {
  const SampleOrder order(data.size(), config.batch, 1);
  Outcome outcome;
  Session session({.model = &model, .plan = plan, .policy = "", .train = config});
  session.train(data, order, 0, 0, num_steps, {.on_step = [&](int64_t, const LossSums& sums) {
                  outcome.losses.push_back(sums.loss);
                }});
  outcome.evaluated = session.evaluate(data, 7);
  outcome.state = state_of(session);
  return outcome;
}

void expect_same(const Outcome& found, const Outcome& expected, bool bit_for_bit,
                 const std::string& what) {
  ASSERT_EQ(found.losses.size(), expected.losses.size()) << what;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], bit_for_bit ? 0 : 1e-9) << what;
  }
  EXPECT_EQ(found.evaluated.samples, expected.evaluated.samples);
  EXPECT_EQ(found.evaluated.correct, expected.evaluated.correct);
  ASSERT_EQ(found.state.size(), expected.state.size()) << what;
  for (const auto& [name, tensor] : expected.state) {
    ASSERT_TRUE(found.state.contains(name)) << what << " " << name;
    const at::Tensor& own = found.state.at(name);
    if (bit_for_bit) {
      EXPECT_TRUE(at::equal(own, tensor)) << what << " " << name;
    } else {
      EXPECT_LE(testing::relative_difference(own, tensor), 1e-9) << what << " " << name;
    }
  }
}

TEST(Processes, EveryLayoutTrainsAsOneProcess) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(60);
  struct Case {
    std::string schedule;
    std::vector<int> stages;
    int replicas;
    int microbatches;
    int processes;
    bool exact;  // at most two summands between processes, so any order gives the same bits
  };
  for (const Case& each :
       {Case{"1f1b", {3, 4}, 1, 4, 2, true}, Case{"1f1b", {7}, 2, 1, 2, true},
        Case{"gpipe", {3, 4}, 2, 2, 2, true}, Case{"1f1b", {3, 4}, 2, 2, 3, false},
        Case{"1f1b", {7}, 4, 1, 4, false}, Case{"pipedream", {2, 2, 3}, 1, 1, 3, true},
        Case{"pipedream", {3, 4}, 2, 1, 2, true}, Case{"zb-h1", {2, 2, 3}, 1, 4, 2, true}}) {
    const Plan plan = plan_of(model, each.stages, each.replicas, each.schedule, each.microbatches);
    const Outcome expected = run_alone(model, plan, config_of(8), data, 7);
    const Outcome found = run(model, plan, config_of(8), data, each.processes, 7);
    const std::string what = each.schedule + " on " + std::to_string(each.processes) + " processes";
    expect_same(found, expected, each.exact, what);
    EXPECT_EQ(static_cast<int>(found.trace.ranks.size()), plan.workers);
    EXPECT_EQ(found.trace.num_steps, 7);
    for (const int64_t steps : found.steps) {
      EXPECT_EQ(steps, 7);
    }
  }
}

// Every process knows its own, and all of them all.
TEST(Processes, FirstStepsAreGathered) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(8 * 22);
  const Plan plan = plan_of(model, {3, 4}, 1, "1f1b", 2);
  Worlds worlds = joined_worlds(plan.workers, 2, 60);
  const SampleOrder order(data.size(), 8, 1);
  const auto errors = run_ranks(2, [&](int process) {
    JoinedWorld& world = *worlds[static_cast<std::size_t>(process)];
    Session session(
        {.model = &model, .world = &world, .plan = plan, .policy = "", .train = config_of(8)});
    session.train(data, order, 0, 0, 10, {});
    EXPECT_FALSE(session.first_steps());
    EXPECT_FALSE(session.all_first_steps());
    session.train(data, order, 0, 10, 12, {});
    const Trace own = session.first_steps().value();
    ASSERT_EQ(own.ranks.size(), 1U);
    EXPECT_EQ(own.ranks[0].rank, process);
    EXPECT_EQ(own.step_s > 0, process == 0) << "of the first stage";
    const Trace all = session.all_first_steps().value();
    ASSERT_EQ(all.ranks.size(), 2U);
    EXPECT_EQ(all.ranks[static_cast<std::size_t>(process)], own.ranks[0]);
    EXPECT_GT(all.ranks[0].compute_s, 0);
    EXPECT_GT(all.ranks[1].compute_s, 0);
    EXPECT_GT(all.step_s, 0);
    world.close(30);
  });
  EXPECT_EQ(thrown(errors), "");
}

TEST(Processes, TheGradientIsClippedByTheNormOverAllProcesses) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(60);
  TrainConfig config = config_of(8);
  config.clip_norm = 0.05;
  const Plan plan = plan_of(model, {3, 4}, 1, "1f1b", 2);
  std::vector<double> norms;
  StepHooks hooks;
  hooks.on_norm = [&](int64_t, double norm) { norms.push_back(norm); };
  expect_same(run(model, plan, config, data, 2, 7, hooks), run_alone(model, plan, config, data, 7),
              true, "clipped");
  EXPECT_EQ(norms.size(), 7U);
}

// Any process may ask; all do the same steps, and what is left equals a run of that length.
TEST(Processes, AStopThatAnyAsksForDrainsAll) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(400);
  for (const std::string schedule : {"pipedream", "1f1b"}) {
    const Plan plan = plan_of(model, {2, 2, 3}, 1, schedule);
    std::atomic<int64_t> reported{0};
    StepHooks hooks;
    hooks.on_step = [&](int64_t, const LossSums&) { ++reported; };
    hooks.stop_requested = [&] { return reported >= 5; };  // seen by all three, at unlike moments
    const Outcome found = run(model, plan, config_of(4), data, 3, 100, hooks);
    EXPECT_GE(found.steps[0], 5);
    EXPECT_EQ(found.steps[1], found.steps[0]);
    EXPECT_EQ(found.steps[2], found.steps[0]);
    EXPECT_EQ(static_cast<int64_t>(found.losses.size()), found.steps[0]);
    expect_same(found, run_alone(model, plan, config_of(4), data, found.steps[0]), true, schedule);
  }
}

TEST(Processes, AFailureInOneEndsAllWithItsCause) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(400);
  const Plan plan = plan_of(model, {3, 4}, 1, "1f1b", 2);
  const SampleOrder order(400, 8, 1);
  Worlds worlds = joined_worlds(2, 2, 60);
  const double start_s = monotonic_s();
  const auto errors = run_ranks(2, [&](int process) {
    SessionSetup setup{.model = &model,
                       .world = worlds[static_cast<std::size_t>(process)].get(),
                       .plan = plan,
                       .policy = "",
                       .train = config_of(8)};
    if (process == 1) {
      setup.before_action = [count = 0](int, const Action&) mutable {
        if (++count == 40) {
          throw Error(ErrorCode::kOutOfMemory, "no room here");
        }
      };
    }
    Session session(setup);
    session.train(data, order, 0, 0, 50, {});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->what(), ::testing::HasSubstr("no room here"));
  }
  EXPECT_EQ(errors[1]->code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(errors[1]->rank(), 1);
  EXPECT_LT(monotonic_s() - start_s, 30);
  close_all(worlds, 1);
}

}  // namespace
}  // namespace millrace
#endif
