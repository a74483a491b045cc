// FlexFlow's search against exhaustion, and what it promises of its start.
#include "millrace/planner/internal/soap_search.h"

#include <gtest/gtest.h>

#include <iostream>

#include "tests/planner/internal/flexflow_testing.h"

namespace millrace::internal {
namespace {

using millrace::testing::exhaustive_optimum_s;
using millrace::testing::flat;
using millrace::testing::random_configuration;
using millrace::testing::random_operators;
using millrace::testing::searches_that_find;

// Two dimensions on four devices: 1, 2 or 4 parts, 15 configurations an operator. bench/ does the
// same with five operators.
TEST(SoapSearch, FindsTheOptimumOfFourOperatorsOnFourDevices) {
  int found = 0;
  for (unsigned seed = 1; seed <= 2; ++seed) {
    std::mt19937 random(seed);
    const Profile profile = random_operators(4, random, {"Linear"});
    const Cluster cluster = flat(4, 2e9);
    const SoapProblem problem = soap_problem(profile, cluster, 4);
    EXPECT_EQ(configurations(problem, 0).size(), 15U);
    int64_t strategies = 0;
    const double optimum_s = exhaustive_optimum_s(problem, strategies);
    EXPECT_EQ(strategies, 50625);
    EXPECT_LT(optimum_s, TaskGraph(problem, data_parallel_strategy(problem)).cost_s());
    found += searches_that_find(problem, optimum_s, 50);
  }
  EXPECT_GE(found, 95);
  std::cout << found << " of 100 searches\n";
}

TEST(SoapSearch, IsNeverWorseThanItsStartAndTellsTheCostOfItsBest) {
  std::mt19937 random(8);
  for (int round = 0; round < 40; ++round) {
    const Profile profile = random_operators(2 + round % 9, random);
    const Cluster cluster = flat(4, 5e8);
    const SoapProblem problem = soap_problem(profile, cluster, 4);
    Strategy start;
    for (std::size_t op = 0; op < problem.operators.size(); ++op) {
      start.push_back(random_configuration(problem, static_cast<int>(op), false, random));
    }
    SearchLimits limits;
    limits.proposals = 20;
    limits.seed = round;
    limits.beta = round % 2 == 0 ? 200 : 1;  // 1: nearly everything is accepted
    limits.free_placement = round % 4 >= 2;
    const SearchResult result = search_strategies(problem, start, limits);
    EXPECT_EQ(result.start_s, TaskGraph(problem, start).cost_s());
    EXPECT_LE(result.best_s, result.start_s);
    EXPECT_EQ(result.best_s, TaskGraph(problem, result.best).cost_s());
    EXPECT_EQ(result.proposals, 20);
    const SearchResult again = search_strategies(problem, start, limits);
    EXPECT_EQ(again.best, result.best);
    limits.until_s = 0;
    const SearchResult late = search_strategies(problem, start, limits);
    EXPECT_TRUE(late.clock_ended);
    EXPECT_EQ(late.best, start);
  }
}

TEST(SoapSearch, EndsWhenItHasSimulatedEnough) {
  std::mt19937 random(9);
  const Profile profile = random_operators(6, random);
  const Cluster cluster = flat(4, 5e8);
  const SoapProblem problem = soap_problem(profile, cluster, 4);
  SearchLimits limits;
  limits.simulated_tasks = 2000;
  const SearchResult result = search_strategies(problem, data_parallel_strategy(problem), limits);
  EXPECT_GT(result.proposals, 10);
  EXPECT_LT(result.proposals, 200);
  EXPECT_FALSE(result.clock_ended);
}

// Against every plan of stages: all cuts and replicas.
TEST(SoapSearch, FindsTheBestStages) {
  int found = 0;
  double worst = 1;
  constexpr int kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    std::mt19937 random(round + 1);
    const Profile profile = random_operators(5, random);
    const Cluster cluster = flat(5, 3e8);
    const SoapProblem problem = soap_problem(profile, cluster, 5);
    double best_s = 1e300;
    SoapStages stages;
    const auto try_from = [&](const auto& self, int begin, int devices) -> void {
      if (begin == 5) {
        best_s = std::min(best_s, TaskGraph(problem, strategy_of(problem, stages)).cost_s());
        return;
      }
      for (int end = begin + 1; end <= 5; ++end) {
        for (int replicas = 1; replicas <= devices; ++replicas) {
          stages.ends.push_back(end);
          stages.replicas.push_back(replicas);
          self(self, end, devices - replicas);
          stages.ends.pop_back();
          stages.replicas.pop_back();
        }
      }
    };
    try_from(try_from, 0, 5);
    const SearchResult result = search_stages(problem, {{5}, {5}}, {});
    EXPECT_GE(result.best_s, best_s);
    EXPECT_TRUE(stages_of(problem, result.best).has_value());
    found += result.best_s == best_s ? 1 : 0;
    worst = std::max(worst, result.best_s / best_s);
  }
  EXPECT_GE(found, kRounds * 9 / 10);
  EXPECT_LT(worst, 1.1);
  std::cout << found << " of " << kRounds << ", at worst " << worst << " times the best\n";
}

}  // namespace
}  // namespace millrace::internal
