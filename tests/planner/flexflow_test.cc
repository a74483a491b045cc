// FlexFlow's planner from end to end: plans that a run can take, and what their notes tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/base/caught.h"
#include "tests/planner/internal/flexflow_testing.h"

namespace millrace {
namespace {

using testing::flat;
using ::testing::HasSubstr;
using testing::random_operators;
using testing::two_levels;

double cost_s(const Profile& profile, const Cluster& cluster, int workers,
              const internal::Strategy& strategy) {
  const internal::SoapProblem problem = internal::soap_problem(profile, cluster, workers);
  return internal::TaskGraph(problem, strategy).cost_s();
}

TEST(Flexflow, PlansAreNeverWorseThanDataParallelOrOneWorker) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    const Profile profile = random_operators(2 + static_cast<int>(seed), random);
    const Cluster cluster = seed % 2 == 0 ? flat(6, 1e8 * seed) : two_levels(2, 3, 4e9, 5e8);
    for (const char* planner : {"flexflow", "flexflow-free"}) {
      const Plan plan = make_plan(planner, {profile, cluster, 6, {}, {}, false});
      EXPECT_NO_THROW(check_plan(plan, layer_names(profile), profile.edges));
      const internal::SoapProblem problem = internal::soap_problem(profile, cluster, 6);
      const auto stages = internal::stages_of(problem, profile, plan);
      ASSERT_TRUE(stages.has_value());
      EXPECT_EQ(plan.objective_s,
                cost_s(profile, cluster, 6, internal::strategy_of(problem, *stages)));
      const auto n = static_cast<int>(profile.layers.size());
      for (const int replicas : {1, 6}) {
        EXPECT_LE(plan.objective_s,
                  cost_s(profile, cluster, 6, internal::strategy_of(problem, {{n}, {replicas}})));
      }
      EXPECT_EQ(make_plan(planner, {profile, cluster, 6, {}, {}, false}), plan);
    }
  }
}

// The published example of what the paper is about: a large linear layer wants its parameters
// split, the layers before it their samples. Stages can only take it to fewer workers.
TEST(Flexflow, TellsWhatSplitsWouldReach) {
  Profile profile;
  profile.samples_per_microbatch = 64;
  for (const char* name : {"conv1", "relu1", "fc1"}) {
    LayerProfile layer;
    layer.name = name;
    layer.forward_s = 8e-3;
    layer.input_gradient_s = 16e-3;
    layer.output_bytes = 400'000;
    profile.layers.push_back(layer);
  }
  profile.layers[0].parameter_bytes = 100'000;
  profile.layers[2].parameter_bytes = 400'000'000;
  make_chain(profile);
  const Cluster cluster = flat(4, 1e9);
  const Plan plan = make_plan("flexflow", {profile, cluster, 4, {}, {}, false});
  ASSERT_EQ(plan.notes.size(), 1U);
  EXPECT_THAT(plan.notes[0], HasSubstr("fc1: channels 4 on 0-3"));
  EXPECT_EQ(plan.stages.back().ranks.size(), 1U);  // else 0.6 s of reduction
  const internal::Strategy said = {{{4, 1, 1}, 0, {}}, {{4, 1, 1}, 0, {}}, {{1, 1, 4}, 0, {}}};
  EXPECT_LT(cost_s(profile, cluster, 4, said), plan.objective_s);
}

TEST(Flexflow, SplitsSamplesNoFurtherThanThereAre) {
  std::mt19937 random(3);
  Profile profile = random_operators(4, random, {"ReLU"});
  profile.samples_per_microbatch = 3;
  const Cluster cluster = flat(8, 1e12);
  const Plan plan = make_plan("flexflow", {profile, cluster, 8, {}, {}, false});
  EXPECT_EQ(plan.max_replicas(), 3);
}

TEST(Flexflow, TakesNeighboursTogetherWhereTheGraphWouldBeTooLarge) {
  std::mt19937 random(4);
  const Profile profile = random_operators(40, random);
  const Cluster cluster = flat(8, 1e9);
  const internal::SoapProblem whole = internal::soap_problem(profile, cluster, 8);
  EXPECT_EQ(whole.operators.size(), 40U);
  const internal::SoapProblem coarse = internal::soap_problem(profile, cluster, 8, 8 * 3 * 10);
  EXPECT_LT(coarse.operators.size(), 40U);
  double seconds[2] = {0, 0};
  int layer = 0;
  for (const internal::SoapOperator& op : coarse.operators) {
    seconds[0] += op.forward_s + op.backward_s;
    EXPECT_LE(op.layers.size(), 4U);
    for (const int l : op.layers) {
      EXPECT_EQ(l, layer++);
      seconds[1] += profile.layers[l].compute_s();
    }
  }
  EXPECT_EQ(layer, 40);
  EXPECT_NEAR(seconds[0], seconds[1], 1e-12);
}

TEST(Flexflow, RefusesRestrictions) {
  std::mt19937 random(5);
  const Profile profile = random_operators(3, random);
  const Cluster cluster = flat(4, 1e9);
  for (const PlanRequest& request : {PlanRequest{profile, cluster, 4, 2, {}, false},
                                     PlanRequest{profile, cluster, 4, {}, {2}, false},
                                     PlanRequest{profile, cluster, 4, {}, {}, true}}) {
    const Error error = caught([&] { make_plan("flexflow", request); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("`flexflow`"));
  }
}

}  // namespace
}  // namespace millrace
