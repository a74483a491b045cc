// Planner auto: that it finds the best of what it compares, keeps what is fixed, ranks the same way
// every time, and stays inside memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "millrace/core/run_config.h"
#include "millrace/planner/internal/candidates.h"
#include "millrace/rule/rule.h"
#include "millrace/schedule/policy.h"
#include "millrace/schedule/registry.h"
#include "tests/base/caught.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

Profile random_profile(std::mt19937_64& random, std::size_t num_layers) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Profile profile = testing::chain(std::vector<testing::Layer>(num_layers));
  profile.samples_per_microbatch = 16;
  for (LayerProfile& layer : profile.layers) {
    layer.forward_s = 1e-3 * (1 + below(20));
    layer.input_gradient_s = layer.forward_s;
    layer.weight_gradient_s = layer.forward_s;
    layer.output_bytes = 16 * (1 + below(100'000));
    layer.stash_bytes = 2 * layer.output_bytes;
    layer.parameter_bytes = 4 * (1 + below(2'000'000));
  }
  return profile;
}

std::vector<RankedPlan> ranking_of(PlanRequest request) {
  std::vector<RankedPlan> ranking;
  request.ranked = [&ranking](const RankedPlan& ranked) { ranking.push_back(ranked); };
  const Plan plan = make_plan("auto", request);
  EXPECT_EQ(plan.stages, ranking.at(0).plan.stages);
  EXPECT_EQ(plan.schedule, ranking.at(0).plan.schedule);
  EXPECT_EQ(plan.microbatches, ranking.at(0).plan.microbatches);
  EXPECT_EQ(plan.rule, ranking.at(0).plan.rule);
  EXPECT_EQ(plan.recompute, ranking.at(0).plan.recompute);
  EXPECT_EQ(plan.objective_s, ranking.at(0).step_s);
  return ranking;
}

TEST(Auto, IsAsFastAsTheFastestCandidateWithoutPruning) {
  std::mt19937_64 random(31);
  for (int i = 0; i < 4; ++i) {
    const Profile profile = random_profile(random, 5 + random() % 4);
    Cluster cluster = i % 2 == 0 ? testing::flat(4, 1e9) : testing::two_levels(2, 2, 4e9, 2e8);
    const PlanRequest request{profile, cluster, 4, {}, {}, false};
    double fastest_s = 1e9;
    int looser = 0;
    const internal::Candidates candidates = internal::candidates_for(request);
    for (const internal::Candidate& candidate : candidates.all) {
      const double step_s = simulate_plan(candidate.plan, profile, cluster, 16).step_s;
      EXPECT_LE(candidate.bound_s, step_s)
          << candidate.plan.schedule << " " << describe(candidate.plan);
      looser += candidate.bound_s < 0.5 * step_s ? 1 : 0;
      fastest_s = std::min(fastest_s, step_s);
    }
    EXPECT_GT(candidates.all.size(), 100U);
    EXPECT_LT(looser, static_cast<int>(candidates.all.size()) * 9 / 10);
    const std::vector<RankedPlan> ranking = ranking_of(request);
    EXPECT_EQ(ranking.size(), 10U);
    EXPECT_LE(ranking[0].step_s, fastest_s * (1 + 1e-6));
    for (std::size_t k = 1; k < ranking.size(); ++k) {
      EXPECT_LE(static_cast<float>(ranking[k - 1].step_s), static_cast<float>(ranking[k].step_s));
      EXPECT_FALSE(ranking[k].reason.empty());
    }
  }
}

TEST(Auto, ComparesEveryScheduleThatKeepsWeightsTogether) {
  std::mt19937_64 random(32);
  const Profile profile = random_profile(random, 16);
  const Cluster cluster = testing::flat(4, 1e9);
  std::set<std::string> seen;
  for (const auto& candidate : internal::candidates_for({profile, cluster, 4, {}, {}, false}).all) {
    seen.insert(candidate.plan.schedule);
  }
  for (const ScheduleEntry& entry : schedules()) {
    const bool together = find_policy(entry.builtin->policies().front()).backward_as_forward;
    EXPECT_EQ(seen.count(entry.name) == 1, together) << entry.name;
  }
}

TEST(Auto, WhatTheRequestFixesStaysFixed) {
  std::mt19937_64 random(33);
  const Profile profile = random_profile(random, 8);
  const Cluster cluster = testing::flat(4, 1e9);
  PlanRequest request{profile, cluster, 4, {}, {}, false};
  request.schedule = "1f1b";
  request.microbatches = 4;
  request.rule = "gradient-flow";
  request.recompute = Recompute::kStage;
  for (const RankedPlan& ranked : ranking_of(request)) {
    EXPECT_EQ(ranked.plan.schedule, "1f1b");
    EXPECT_EQ(ranked.plan.microbatches, 4);
    EXPECT_EQ(ranked.plan.rule, "gradient-flow");
    EXPECT_EQ(ranked.plan.recompute, Recompute::kStage);
  }
  PlanRequest shaped{profile, cluster, 4, 2, {2}, false};
  for (const RankedPlan& ranked : ranking_of(shaped)) {
    EXPECT_EQ(ranked.plan.num_stages(), 2);
    for (const PlanStage& stage : ranked.plan.stages) {
      EXPECT_EQ(stage.ranks.size(), 2U);
    }
  }
}

TEST(Auto, ACallersRefusalIsHeeded) {
  std::mt19937_64 random(34);
  const Profile profile = random_profile(random, 8);
  const Cluster cluster = testing::flat(2, 1e9);
  PlanRequest request{profile, cluster, 2, {}, {}, false};
  request.refuses = [](const Plan& plan) -> std::optional<std::string> {
    return has_flush(*find_schedule(plan.schedule).builtin) ? std::nullopt
                                                            : std::optional<std::string>("flush");
  };
  for (const RankedPlan& ranked : ranking_of(request)) {
    EXPECT_TRUE(has_flush(*find_schedule(ranked.plan.schedule).builtin)) << ranked.plan.schedule;
  }
}

TEST(Auto, RecomputesWhereMemoryAsksForIt) {
  Profile profile = testing::chain(std::vector<testing::Layer>(4));
  profile.samples_per_microbatch = 1;
  for (LayerProfile& layer : profile.layers) {
    layer.stash_bytes = 1'000'000;
    layer.output_bytes = 10;
    layer.parameter_bytes = 1000;
  }
  Cluster cluster = testing::flat(1, 1e9);
  PlanRequest request{profile, cluster, 1, {}, {}, false};
  EXPECT_EQ(ranking_of(request)[0].plan.recompute, Recompute::kNothing);
  cluster.memory_bytes = 1.5e6;  // one layer's stash, not four
  const RankedPlan best = ranking_of(request)[0];
  EXPECT_EQ(best.plan.recompute, Recompute::kLayer);
  cluster.memory_bytes = 0.5e6;
  const Error error = caught([&] { make_plan("auto", request); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("memory"), std::string::npos) << error.message();
}

TEST(Auto, RanksTheSameWayEveryTime) {
  std::mt19937_64 random(35);
  const Profile profile = random_profile(random, 8);
  const Cluster cluster = testing::two_levels(2, 2, 4e9, 2e8);
  const PlanRequest request{profile, cluster, 4, {}, {}, false};
  const std::vector<RankedPlan> first = ranking_of(request);
  const std::vector<RankedPlan> second = ranking_of(request);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t k = 0; k < first.size(); ++k) {
    EXPECT_EQ(first[k].plan, second[k].plan);
    EXPECT_EQ(first[k].step_s, second[k].step_s);
  }
}

// One worker: any schedule takes as long, and the simplest comes first.
TEST(Auto, TheSimplerOfEqualPlansComesFirst) {
  const Profile profile = testing::chain(std::vector<testing::Layer>(3));
  const Cluster cluster = testing::flat(1, 1e9);
  const Plan plan = make_plan("auto", {profile, cluster, 1, {}, {}, false});
  EXPECT_EQ(plan.microbatches, 1);
  EXPECT_EQ(plan.num_stages(), 1);
  EXPECT_TRUE(has_flush(*find_schedule(plan.schedule).builtin));
  EXPECT_EQ(plan.rule, "bsp");
}

// run.toml is read without the registry, and must know which planners choose.
TEST(Auto, RunTomlKnowsThePlannersThatChoose) {
  for (const PlannerEntry& entry : planners()) {
    ParallelConfig parallel;
    parallel.plan = entry.name;
    EXPECT_EQ(parallel.planner_chooses_run(), entry.chooses_run) << entry.name;
  }
}

}  // namespace
}  // namespace millrace
