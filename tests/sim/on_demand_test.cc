// Parts that go to whichever replica asks first: who does how many, in which order, and how long a
// step takes then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/base/random.h"
#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using testing::error_of;
using testing::flat;
using ::testing::HasSubstr;
using testing::network;
using testing::own_rule;
using testing::Parts;
using testing::replicated;
using testing::stage;
using testing::unit_cost;

LoweredSchedule lowered_plan(int stages, int replicas, const std::string& schedule,
                             int microbatches) {
  const Plan plan = replicated(stages, replicas, schedule, microbatches);
  return lower(make_schedule(schedule, schedule_config(plan)), plan, 1);
}

// Replicas know nothing of each other.
OwnRule alone() {
  return own_rule([](const RuleConfig&) { return Parts{}; }, RuleTraits{.any_pace = true});
}

int64_t steps_of(const Simulation& s, int rank) {
  return std::count_if(s.trace.ranks[rank].events.begin(), s.trace.ranks[rank].events.end(),
                       [](const TraceEvent& e) { return e.action.kind == ActionKind::kStep; });
}

// Under a rule that keeps replicas together nobody gets more than others, and every time is that of
// parts dealt beforehand.
TEST(OnDemand, OfReplicasThatWaitForEachOtherNothingChanges) {
  for (const auto& [stages, replicas, schedule, microbatches] :
       std::vector<std::tuple<int, int, std::string, int>>{
           {1, 4, "gpipe", 1}, {2, 3, "1f1b", 4}, {3, 2, "gpipe", 2}, {2, 1, "1f1b", 2}}) {
    const LoweredSchedule lowered = lowered_plan(stages, replicas, schedule, microbatches);
    const Cluster cluster = network(stages * replicas, 100, 0.25);
    SimulationInput input{
        .lowered = lowered, .costs = {}, .cluster = cluster, .rule = "bsp", .num_steps = 7};
    for (int i = 0; i < stages; ++i) {
      input.costs.push_back(stage(1 + i, 2, 50, 400));
      input.costs.back().update_s = 0.5;
    }
    input.slowdown = [](int rank, int64_t step) { return step % 3 == rank % 3 ? 1.5 : 1.0; };
    const Simulation fixed = simulate(input);
    input.on_demand = true;
    const Simulation s = simulate(input);
    for (std::size_t rank = 0; rank < s.trace.ranks.size(); ++rank) {
      EXPECT_EQ(s.trace.ranks[rank].events, fixed.trace.ranks[rank].events) << schedule << rank;
      EXPECT_EQ(s.ranks[rank].memory, fixed.ranks[rank].memory);
    }
    EXPECT_EQ(s.trace.window_s, fixed.trace.window_s);
  }
}

// Steps of 3 s and 6 s; 12 parts. Those of member 1 end at 6, 12, 18, 24; of member 0 at 3, 6, ...
TEST(OnDemand, AFastReplicaDoesMoreSteps) {
  const LoweredSchedule lowered = flat(2);
  const Cluster cluster = free_cluster(2);
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 6};
  std::vector<std::set<int64_t>> own(2);
  input.slowdown = [&own](int rank, int64_t step) {
    own[rank].insert(step);
    return rank == 1 ? 2.0 : 1.0;
  };
  std::vector<std::vector<int64_t>> steps(2);  // of the run, as the rule sees them
  input.own_rule = own_rule(
      [&steps](const RuleConfig& config) {
        const int member = config.member;
        Parts part;
        part.step = [=, &steps](Port& port) -> Task {
          steps[member].push_back(port.update().step);
          EXPECT_EQ(port.update().samples, 8);
          EXPECT_EQ(port.update().own_samples, 4);
          co_return;
        };
        return part;
      },
      RuleTraits{.any_pace = true});
  input.batch = 8;
  input.on_demand = true;
  const Simulation s = simulate(input);
  // Asked for at 0 by both, at 3 by member 0, at 6 by both and so on: parts 0 and 1 (of step 0), 2,
  // then 3 and 4, 5, 6 and 7, 8, 9 and 10, 11.
  EXPECT_EQ(steps[0], (std::vector<int64_t>{0, 1, 1, 2, 3, 4, 4, 5}));
  EXPECT_EQ(steps[1], (std::vector<int64_t>{0, 2, 3, 5}));
  EXPECT_EQ(own[0], (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(own[1], (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(s.trace.window_s, 24);
  EXPECT_EQ(s.trace.ranks[0].events.back().end_s, 24);
  EXPECT_EQ(to_string(s.trace.ranks[1].events.back().action), "0STEP6-7@4");
}

// Parts end at 3, 6, 6, 9, 12, 12, ...: three every 6 s, so a step of two parts takes 4 s.
TEST(OnDemand, AStepTakesWhatAsManyPartsTake) {
  const LoweredSchedule lowered = flat(2);
  const Cluster cluster = free_cluster(2);
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 60};
  input.slowdown = [](int rank, int64_t) { return rank == 1 ? 2.0 : 1.0; };
  input.own_rule = alone();
  input.on_demand = true;
  const Simulation s = simulate(input);
  EXPECT_EQ(s.trace.window_s, 240);
  EXPECT_EQ(s.window_s, 240);
  EXPECT_EQ(s.idle_slots, 0);
  // The 42nd part ends at 84; then 39 steps.
  EXPECT_DOUBLE_EQ(s.step_s, (240.0 - 84.0) / 39);
  input.num_steps = 1;
  EXPECT_EQ(simulate(input).step_s, 6);
}

// Replica 1's second stage is slow; its first one, which could go on, works on the same parts.
TEST(OnDemand, AllRanksOfACopyWorkOnTheSamePart) {
  const LoweredSchedule lowered = lowered_plan(2, 3, "1f1b", 4);
  const Cluster cluster = network(6, 1000, 0.01);
  std::vector<std::vector<int64_t>> steps(6);
  SimulationInput input{.lowered = lowered,
                        .costs = {stage(1, 2, 10, 400), stage(1, 2, 10, 400)},
                        .cluster = cluster,
                        .num_steps = 20};
  input.slowdown = [](int rank, int64_t) { return rank == 4 ? 3.0 : 1.0; };
  int made = 0;  // stage by stage, member by member
  input.own_rule = own_rule(
      [&](const RuleConfig&) {
        const int rank = made++;
        Parts part;
        part.step = [=, &steps](Port& port) -> Task {
          steps[rank].push_back(port.update().step);
          co_return;
        };
        return part;
      },
      RuleTraits{.any_pace = true});
  input.on_demand = true;
  const Simulation s = simulate(input);
  std::vector<int64_t> all;
  for (int copy = 0; copy < 3; ++copy) {
    EXPECT_EQ(steps[copy], steps[copy + 3]);
    EXPECT_EQ(steps_of(s, copy), steps_of(s, copy + 3));
    all.insert(all.end(), steps[copy].begin(), steps[copy].end());
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], static_cast<int64_t>(i / 3));
  }
  EXPECT_EQ(all.size(), 60U);
  EXPECT_EQ(steps_of(s, 0), steps_of(s, 2));
  EXPECT_LT(steps_of(s, 1), steps_of(s, 0));
}

// The first step of replica 0, which is rank 2 here, takes no time, so that it asks twice at 0
// before the others; of the six parts two are left when all ask at 3 s.
TEST(OnDemand, OfSeveralThatAskAtOneTimeTheLowestReplicaGetsIt) {
  const std::string list = "0F0 0B0 0STEP";
  LoweredSchedule lowered = testing::program({list, list, list}, {{0}, {0}, {0}});
  std::reverse(lowered.stage_ranks[0].begin(), lowered.stage_ranks[0].end());
  const Cluster cluster = free_cluster(3);
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 2};
  input.slowdown = [](int rank, int64_t step) { return rank == 2 && step == 0 ? 0.0 : 1.0; };
  input.own_rule = alone();
  input.on_demand = true;
  const Simulation s = simulate(input);
  EXPECT_EQ(steps_of(s, 2), 3);
  EXPECT_EQ(steps_of(s, 1), 2);
  EXPECT_EQ(steps_of(s, 0), 1);
}

// All parts are done, whatever the rule, and nothing that it sends is left over at the end.
TEST(OnDemand, EveryRuleThatKeepsAnyPaceDoesAllParts) {
  const LoweredSchedule lowered = lowered_plan(2, 4, "1f1b", 2);
  const Cluster cluster = network(8, 1e4, 0.02);
  int num_rules = 0;
  for (const RuleEntry& rule : rules()) {
    SimulationInput input{.lowered = lowered,
                          .costs = {stage(1, 2, 10, 400), stage(0.5, 1, 10, 4000)},
                          .cluster = cluster,
                          .rule = rule.name,
                          .num_steps = 50};
    input.slowdown = [](int rank, int64_t step) {
      return 1 + RandomKey(rank).with("slow").uniform(step);
    };
    EXPECT_NO_THROW(simulate(input)) << rule.name;
    input.on_demand = true;
    if (!rule.traits.any_pace) {
      continue;
    }
    ++num_rules;
    const Simulation s = simulate(input);
    int64_t sum = 0;
    for (int copy = 0; copy < 4; ++copy) {
      sum += steps_of(s, copy);
      EXPECT_EQ(steps_of(s, copy + 4), steps_of(s, copy)) << rule.name;
    }
    EXPECT_EQ(sum, 200) << rule.name;
    EXPECT_GT(s.step_s, 0);
  }
  EXPECT_GE(num_rules, 8);
}

TEST(OnDemand, NeedsAFlushAndWholeCopies) {
  const auto refuse = [](const LoweredSchedule& lowered) {
    const Cluster cluster = free_cluster(static_cast<int>(lowered.ranks.size()));
    SimulationInput input{
        .lowered = lowered, .costs = slot_costs(lowered.num_stages, 1, 2), .cluster = cluster};
    input.on_demand = true;
    const Error error = error_of([&] { simulate(input); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << lowered.name;
    EXPECT_EQ(error.key(), "parallel.deal");
    EXPECT_THAT(error.message(), HasSubstr("schedule " + lowered.name + " here"));
  };
  refuse(lowered_plan(1, 2, "pipedream", 1));
  refuse(testing::straight("chimera", 4, 4));
  Plan plan = replicated(2, 2, "1f1b", 4);
  plan.stages[1].ranks.pop_back();
  plan.workers = 3;
  refuse(lower(make_schedule("1f1b", schedule_config(plan)), plan, 1));
  // A microbatch of one, two of the other.
  refuse(testing::program({"0F0 0B0 0STEP", "0F1-2 0B1-2 0STEP"}, {{0}, {0}}));
  // Each rank is replica 0 of one stage and replica 1 of the other.
  LoweredSchedule crossed = testing::program(
      {"0F0 1F0 1B0 0B0 0STEP 1STEP", "0F0 1F0 1B0 0B0 0STEP 1STEP"}, {{0, 1}, {0, 1}});
  std::reverse(crossed.stage_ranks[1].begin(), crossed.stage_ranks[1].end());
  refuse(crossed);
}

}  // namespace
}  // namespace millrace
