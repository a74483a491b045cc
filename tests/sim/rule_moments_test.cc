// When the simulator calls rules: gradients in pieces, the update at hand, beginning and end; and
// what does not end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::error_of;
using testing::event;
using testing::flat;
using ::testing::HasSubstr;
using testing::kServer;
using testing::kSums;
using testing::network;
using testing::own_rule;
using testing::Parts;
using testing::stage;
using testing::synchronous_server;
using testing::unit_cost;

// --- overlap

OwnRule reduces_pieces() {
  return own_rule(
      [](const RuleConfig&) {
        auto begun = std::make_shared<std::vector<int64_t>>();
        Parts parts;
        parts.ready = [=](Port& port, Range range, bool last) -> Task {
          if (!last) {
            begun->push_back(port.start_all_reduce(port.gradient(), range, Port::kEverybody));
            co_return;
          }
          EXPECT_EQ(range.size(), 0);
          for (const int64_t number : *begun) {
            co_await port.reduced(number);
          }
          begun->clear();
        };
        parts.step = [](Port& port) -> Task {
          port.apply(port.gradient(), port.update().samples);
          co_return;
        };
        return parts;
      },
      RuleTraits{.equal_replicas = true, .sums_gradients = true, .overlaps = true});
}

TEST(RuleMoments, PiecesOfAGradientAreReducedWhileTheBackwardRuns) {
  const Plan plan = testing::replicated(1, 2, "gpipe", 2);
  const LoweredSchedule lowered = lower(make_schedule("gpipe", schedule_config(plan)), plan, 1);
  const Cluster cluster = network(2, 50, 0);
  StageCost cost = stage(1, 4, 0, 400);
  cost.update_s = 1;
  // Final 1 s, 2 s and 4 s after the last B began (at 6); 200, 100, 100 bytes: 4 s, 2 s, 2 s.
  cost.pieces = {{{50, 100}, 0.25}, {{25, 50}, 0.5}, {{0, 25}, 1}};
  SimulationInput input{.lowered = lowered, .costs = {cost}, .cluster = cluster, .num_steps = 2};
  input.own_rule = reduces_pieces();
  const Simulation s = simulate(input);
  EXPECT_EQ(event(s, 0, "0B0").end_s, 6);
  EXPECT_EQ(event(s, 0, "0B2").end_s, 10);  // no longer for what goes on beside it
  EXPECT_EQ(event(s, 0, "0B2").bytes, 0);
  // From 7 to 11, 11 to 13, 13 to 15: 5 s of 8 are exposed.
  EXPECT_EQ(event(s, 0, "0REDUCE0-3").end_s, 15);
  EXPECT_EQ(event(s, 0, "0REDUCE0-3").bytes, 400);
  EXPECT_EQ(event(s, 0, "0STEP0-3").end_s, 16);
  EXPECT_EQ(event(s, 0, "0STEP4-7").end_s, 32);

  input.costs[0].pieces.clear();  // all at the end: 8 s exposed
  EXPECT_EQ(event(simulate(input), 0, "0REDUCE0-3").end_s, 18);
}

TEST(RuleMoments, PiecesOfASplitBackwardComeWithTheLastMicrobatchsWeightGradients) {
  const std::string list = "0F0-1 0I0-1 0W0-1 0REDUCE 0STEP";
  const LoweredSchedule lowered = testing::program({list, list}, {{0}, {0}});
  const Cluster cluster = network(2, 100, 0);
  StageCost cost = stage(1, 8, 0, 400);  // W0-1 from 10 to 18, its second half from 14
  cost.pieces = {{{75, 100}, 0.9, 0.25}, {{0, 75}, 0.95, 0.5}};
  SimulationInput input{.lowered = lowered, .costs = {cost}, .cluster = cluster};
  input.own_rule = reduces_pieces();
  // 100 bytes from 15 to 16, 300 bytes from 16 to 19.
  EXPECT_EQ(event(simulate(input), 1, "0REDUCE").end_s, 19);
}

// It joins with the same pieces, at its REDUCE.
TEST(RuleMoments, AReplicaWithoutAMicrobatchTakesPartInThePieces) {
  const Plan plan = testing::replicated(1, 2, "pipedream", 1);
  const LoweredSchedule lowered = lower(make_schedule("pipedream", schedule_config(plan)), plan, 3);
  const Cluster cluster = network(2, 400, 0);
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 3};
  input.costs[0].pieces = {{{40, 100}, 0.5}, {{0, 40}, 1}};
  input.own_rule = reduces_pieces();
  const Simulation s = simulate(input);
  // The first round to 3, reduced from 2 to 2.6 and from 3 to 3.4. The second: replica 0 computes
  // from 3.4 to 6.4.
  EXPECT_DOUBLE_EQ(event(s, 1, "0REDUCE0-1").end_s, 3.4);
  EXPECT_DOUBLE_EQ(event(s, 1, "0REDUCE2").end_s, 6.8);
  EXPECT_EQ(event(s, 1, "0REDUCE2").bytes, 400);
}

TEST(RuleMoments, AnOverlappingRuleMustNotWaitInTheBackward) {
  const LoweredSchedule lowered = flat(2);
  const Cluster cluster = network(2, 50, 0);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.own_rule = own_rule(
      [](const RuleConfig&) {
        Parts parts;
        parts.ready = [](Port& port, Range range, bool) -> Task {
          co_await port.all_reduce(port.gradient(), range);
        };
        return parts;
      },
      RuleTraits{.overlaps = true});
  const Error error = error_of([&] { simulate(input); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_THAT(error.message(), HasSubstr("while the backward still ran"));
}

TEST(StageCosts, GiveThePiecesOfTheGradientFromTheLastLayerToTheFirst) {
  Profile profile;
  profile.model = "three";
  const std::vector<int64_t> parameters = {400, 0, 200, 102};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    LayerProfile layer;
    layer.name = "l" + std::to_string(i);
    layer.forward_s = 1;
    layer.input_gradient_s = i == 0 ? 0 : 1;
    layer.weight_gradient_s = static_cast<double>(i);  // 0, 1, 2, 3: backwards 0, 2, 3, 4
    layer.parameter_bytes = parameters[i];
    profile.layers.push_back(layer);
  }
  make_chain(profile);
  Plan plan = testing::replicated(1, 2, "gpipe", 1);
  plan.stages[0].layers = {"l0", "l1", "l2", "l3"};
  std::vector<GradientPiece> pieces = stage_costs(plan, profile, 1)[0].pieces;
  const std::vector<GradientPiece> expected = {
      {{150, 176}, 4.0 / 9, 0.5}, {{100, 150}, 7.0 / 9, 5.0 / 6}, {{0, 100}, 1, 1}};
  EXPECT_EQ(pieces, expected);
  plan.recompute = Recompute::kStage;  // 4 s before it all
  EXPECT_EQ(stage_costs(plan, profile, 1)[0].pieces[0].done, 8.0 / 13);
  plan.recompute = Recompute::kLayer;  // 1 s before each layer
  EXPECT_EQ(stage_costs(plan, profile, 1)[0].pieces[0].done, 5.0 / 13);
}

// --- what is at hand, and where one step is not all

TEST(RuleMoments, UpdatesSayWhatTheyApply) {
  // Two replicas and minibatches dealt out without a flush: rounds of two.
  const Plan plan = testing::replicated(1, 2, "pipedream", 1);
  const LoweredSchedule lowered = lower(make_schedule("pipedream", schedule_config(plan)), plan, 5);
  const Cluster cluster = free_cluster(2);
  std::vector<std::vector<double>> told(2);
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 5};
  input.batch = 6;
  input.own_rule = own_rule([&told](const RuleConfig& config) {
    std::vector<double>& mine = told[config.member];
    Parts parts;
    parts.step = [&mine](Port& port) -> Task {
      const Update& update = port.update();
      mine.insert(mine.end(),
                  {static_cast<double>(update.step), update.samples, update.own_samples});
      co_return;
    };
    return parts;
  });
  simulate(input);
  // The last round has one minibatch, which replica 0 runs.
  EXPECT_EQ(told[0], (std::vector<double>{1, 12, 6, 3, 12, 6, 4, 6, 6}));
  EXPECT_EQ(told[1], (std::vector<double>{1, 12, 6, 3, 12, 6, 4, 6, 0}));
}

TEST(RuleMoments, BeginAndFinishTakeTheirTime) {
  const LoweredSchedule lowered = flat(2);
  const Cluster cluster = network(2, 100, 0);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.own_rule = own_rule([](const RuleConfig&) {
    const auto reduce = [](Port& port) -> Task { co_await port.all_reduce(port.weights()); };
    return Parts{.begin = reduce, .finish = reduce};
  });
  Simulation s = simulate(input);
  EXPECT_EQ(event(s, 0, "0F0").start_s, 4);
  EXPECT_EQ(s.step_s, 3 + 4);  // computing and finish()
  EXPECT_EQ(s.trace.window_s, 3 + 4);
  input.num_steps = 6;
  s = simulate(input);
  EXPECT_EQ(s.step_s, 3);
  EXPECT_EQ(s.window_s, 18);
  EXPECT_EQ(s.trace.window_s, 6 * 3 + 4);
}

TEST(RuleMoments, ARuleOfItsOwnThatSumsIsBsp) {
  const Plan plan = testing::replicated(2, 3, "1f1b", 4);
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  Cluster cluster = network(6, 300, 0.125);
  cluster.relative_speed = {1, 1, 0.5, 2, 1, 1};
  SimulationInput input{.lowered = lowered,
                        .costs = {unit_cost(1), unit_cost(2)},
                        .cluster = cluster,
                        .num_steps = 3};
  const Simulation bsp = simulate(input);
  const auto sums = [](const RuleConfig&) {
    Parts parts;
    parts.ready = [](Port& port, Range range, bool) -> Task {
      co_await port.all_reduce(port.gradient(), range);
    };
    parts.step = [](Port& port) -> Task {
      port.apply(port.gradient(), port.update().samples);
      co_return;
    };
    return parts;
  };
  for (const bool ordered : {false, true}) {
    RuleTraits traits = kSums;
    traits.ordered = ordered;
    input.own_rule = own_rule(sums, traits);
    const Simulation same = simulate(input);
    EXPECT_EQ(same.trace, bsp.trace) << ordered;
    EXPECT_EQ(same.step_s, bsp.step_s);
  }
}

// Random durations, a server that answers as it likes and peers that poll: the same again.
TEST(RuleMoments, TwoRunsGiveTheSameTrace) {
  const Plan plan = testing::replicated(2, 3, "1f1b", 3);
  const LoweredSchedule lowered = lower(make_schedule("1f1b", schedule_config(plan)), plan, 1);
  const Cluster cluster = network(6, 150, 0.01);
  SimulationInput input{.lowered = lowered,
                        .costs = {unit_cost(1), unit_cost(0.5)},
                        .cluster = cluster,
                        .num_steps = 20};
  input.slowdown = [](int rank, int64_t step) {
    return 1.0 + static_cast<double>((rank * 7 + step * 13) % 11) / 10;
  };
  input.own_rule = synchronous_server();
  const Simulation once = simulate(input);
  const Simulation twice = simulate(input);
  EXPECT_EQ(to_json(to_value(once.trace)), to_json(to_value(twice.trace)));
  EXPECT_EQ(once.trace.ranks[5].events.size(), 20 * lowered.ranks[5].size());
  EXPECT_GT(once.step_s, 0);
}

// --- what does not end

TEST(RuleMoments, WhoWaitsInVainIsReported) {
  const LoweredSchedule lowered = flat(3);
  const Cluster cluster = free_cluster(3);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  const auto message = [&] {
    const Error error = error_of([&] { simulate(input); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.message();
  };
  input.own_rule = own_rule([](const RuleConfig& config) {
    const int member = config.member;
    Parts parts;
    parts.step = [=](Port& port) -> Task {
      if (member > 0) {
        co_await port.all_reduce(port.gradient());
      } else {
        co_await port.receive(2, 4, nullptr);
      }
    };
    return parts;
  });
  EXPECT_THAT(
      message(),
      AllOf(HasSubstr("deadlocks"),
            HasSubstr("rank 0 waits in 0STEP0-2@1 for a message of kind 4 from member 2"),
            HasSubstr("rank 1 waits in 0STEP0-2@1 for the other replicas, for a reduction of "
                      "3 members"),
            HasSubstr(">0STEP0-2@1<")));

  // The server never answers and, as nobody says goodbye, never ends.
  input.own_rule = own_rule(
      [](const RuleConfig&) {
        Parts parts;
        parts.finish = [](Port& port) -> Task {
          co_await port.receive(Port::kServer, 2, &port.weights());
        };
        parts.serve = [](Port& port) -> Task { co_await port.receive_any(&port.weights()); };
        return parts;
      },
      kServer);
  EXPECT_THAT(
      message(),
      AllOf(
          HasSubstr("rank 2 waits in finish() of stage 0 for a message of kind 2 from the server"),
          HasSubstr("the server of stage 0 waits for a message from anybody")));

  input.own_rule = own_rule([](const RuleConfig&) {
    return Parts{.begin = [](Port& port) -> Task { co_await port.poll(&port.weights()); }};
  });
  EXPECT_THAT(error_of([&] { simulate(input); }).message(), HasSubstr("without the trait"));
}

TEST(RuleMoments, RefuseWhatDoesNotFit) {
  const LoweredSchedule lowered = flat(2);
  const Cluster cluster = free_cluster(2);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.node_of_rank = {0};
  EXPECT_THAT(error_of([&] { simulate(input); }).message(), HasSubstr("nodes of 2 ranks, found 1"));
  input.node_of_rank.clear();
  input.rule_options.set("tau", Value::of(3));
  EXPECT_EQ(error_of([&] { simulate(input); }).key(), "rule.tau");
}

}  // namespace
}  // namespace millrace
