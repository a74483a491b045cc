// What rules do on the simulator's ports - reductions, groups, messages, a server, polling -
// against times worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using testing::event;
using testing::flat;
using testing::kServer;
using testing::network;
using testing::own_rule;
using testing::Parts;
using testing::synchronous_server;
using testing::unit_cost;

// --- background reductions

// A pipeline of `width` reductions: the one begun in step t is waited for in step t + width - 1
// (width 1: at once).
Parts pipelined(int width) {
  auto begun = std::make_shared<std::vector<int64_t>>();
  Parts parts;
  parts.step = [=](Port& port) -> Task {
    begun->push_back(port.start_all_reduce(port.gradient()));
    const std::size_t due = begun->size();
    if (due >= static_cast<std::size_t>(width)) {
      co_await port.reduced((*begun)[due - static_cast<std::size_t>(width)]);
    }
  };
  parts.finish = [=](Port& port) -> Task {
    if (!begun->empty()) {
      co_await port.reduced(begun->back());
    }
  };
  return parts;
}

TEST(SimulatedRules, ReductionsInTheBackgroundHideBehindComputing) {
  const LoweredSchedule lowered = flat(2);
  constexpr int kSteps = 12;
  constexpr double kCompute = 3;
  // A ring of two sends 400 bytes: 2, 3 and 8 s.
  for (const double bandwidth : {200.0, 400.0 / 3, 50.0}) {
    const double reduce_s = 400 / bandwidth;
    const Cluster cluster = network(2, bandwidth, 0);
    for (int width = 1; width <= 2; ++width) {
      SimulationInput input{
          .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = kSteps};
      input.own_rule = own_rule([width](const RuleConfig&) { return pipelined(width); });
      const Simulation s = simulate(input);
      const double expected =
          width == 1 ? kSteps * (kCompute + reduce_s)
                     : kSteps * std::max(kCompute, reduce_s) + std::min(kCompute, reduce_s);
      EXPECT_NEAR(s.trace.window_s, expected, 1e-9) << bandwidth << " width " << width;
      const double period = width == 1 ? kCompute + reduce_s : std::max(kCompute, reduce_s);
      EXPECT_NEAR(s.step_s, period, 1e-9);
      EXPECT_EQ(event(s, 0, "0STEP0-1").bytes, 400);
    }
  }
}

// Two in the background of one replica do not run at once, though their groups differ.
TEST(SimulatedRules, AReplicasBackgroundIsOneLane) {
  const LoweredSchedule lowered = flat(4);
  const Cluster cluster = network(4, 100, 0);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.own_rule = own_rule([](const RuleConfig& config) {
    auto own = std::make_shared<int>(0);
    const int first = config.member / 2 * 2;
    Parts parts;
    parts.begin = [=](Port& port) -> Task {
      *own = port.make_group({first, first + 1});
      co_return;
    };
    parts.step = [=](Port& port) -> Task {
      const Range half{0, 50};
      const int64_t pair = port.start_all_reduce(port.gradient(), half, *own);
      const int64_t all = port.start_all_reduce(port.gradient());
      co_await port.reduced(pair);
      co_await port.reduced(all);
    };
    return parts;
  });
  const Simulation s = simulate(input);
  // 200 bytes in a ring of two: 2 s; 400 in one of four: 2 x 3/4 x 4 = 6 s.
  EXPECT_DOUBLE_EQ(event(s, 0, "0STEP0-3").end_s, 3 + 2 + 6);
  EXPECT_EQ(event(s, 0, "0STEP0-3").bytes, 600);
}

// --- subgroups

TEST(SimulatedRules, GroupsReduceAmongTheirOwn) {
  const LoweredSchedule lowered = flat(4);
  Cluster cluster = network(2, 400, 0);
  cluster.levels.push_back(network(2, 100, 0).levels[0]);
  std::vector<std::vector<int>> nodes(4);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.node_of_rank = {7, 7, 3, 3};
  input.slowdown = [](int rank, int64_t) { return rank == 3 ? 2.0 : 1.0; };
  input.own_rule = own_rule([&nodes](const RuleConfig& config) {
    auto own = std::make_shared<int>(0);
    const int member = config.member;
    Parts parts;
    parts.begin = [=, &nodes](Port& port) -> Task {
      std::vector<int> mine;
      for (int other = 0; other < port.num_members(); ++other) {
        nodes[member].push_back(port.node_of(other));
        if (port.node_of(other) == port.node_of(member)) {
          mine.push_back(other);
        }
      }
      *own = port.make_group(mine);
      co_return;
    };
    parts.ready = [=](Port& port, Range range, bool) -> Task {
      co_await port.all_reduce(port.gradient(), range, *own);
    };
    return parts;
  });
  const Simulation s = simulate(input);
  EXPECT_EQ(nodes, std::vector<std::vector<int>>(4, {0, 0, 1, 1}));  // numbered in order of members
  EXPECT_EQ(event(s, 0, "0REDUCE0-3").end_s, 3 + 1);                 // 400 bytes inside a node
  EXPECT_EQ(event(s, 0, "0REDUCE0-3").wait_s, 0);
  EXPECT_EQ(event(s, 2, "0REDUCE0-3").end_s, 6 + 1);  // with the slow one
  EXPECT_EQ(event(s, 2, "0REDUCE0-3").wait_s, 3);
}

// --- messages

// Each member sends its weights to the next and takes those of the one before.
TEST(SimulatedRules, MessagesTakeTheLinksThatTensorsTake) {
  const LoweredSchedule lowered = flat(3);
  const Cluster cluster = network(3, 100, 0.5);
  SimulationInput input{.lowered = lowered, .costs = {unit_cost(8)}, .cluster = cluster};
  input.own_rule = own_rule([](const RuleConfig& config) {
    const int member = config.member;
    Parts parts;
    parts.step = [=](Port& port) -> Task {
      Vector& other = port.make_vector(1);
      Vector& small = port.make_vector(25);
      const int next = (member + 1) % 3;
      const int before = (member + 2) % 3;
      port.send(next, 1, port.weights());  // 4 s on the wire
      port.give(next, 2, small);           // behind it on the same link: 1 s
      const Numbers numbers{1, 2, 3, 4.0 * member};
      port.send(next, 3, nullptr, numbers);
      const Message third = co_await port.receive(before, 3, nullptr);
      EXPECT_EQ(third.numbers[3], 4.0 * before);
      EXPECT_EQ(third.from, before);
      co_await port.receive(before, 1, &other);
      EXPECT_EQ(other.size, 100);
      co_await port.receive(before, 2, &other);
      EXPECT_EQ(other.size, 25);
      port.apply(port.gradient(), port.update().samples);  // 8 s
      add(port, port.weights(), port.current());           // a quarter
    };
    return parts;
  });
  const Simulation s = simulate(input);
  for (int rank = 0; rank < 3; ++rank) {
    const TraceEvent& e = event(s, rank, "0STEP0-2");
    EXPECT_EQ(e.start_s, 3);
    EXPECT_EQ(e.wait_s, 5.5);
    EXPECT_EQ(e.end_s, 3 + 5.5 + 8 + 2);
    EXPECT_EQ(e.bytes, 500);
  }
}

// --- a server

TEST(SimulatedRules, ASynchronousServerAnswersAllAtOnce) {
  for (const int workers : {2, 4, 7}) {
    const LoweredSchedule lowered = flat(workers);
    const Cluster cluster = network(workers, 100, 0.25);
    SimulationInput input{
        .lowered = lowered, .costs = {unit_cost(2)}, .cluster = cluster, .num_steps = 5};
    input.own_rule = synchronous_server();
    const Simulation s = simulate(input);
    // 3 s of computing; 4.25 s there, but member 0 is there at once and has been added by then
    // (0.5 s each); the others' sums, the update, and 4.25 s back. From the second step on member
    // 0, which got its answer at once, began 4.25 s before the others.
    const double step_s = 3 + 4.25 + 0.5 * (workers - 1) + 2 + 4.25;
    EXPECT_NEAR(s.trace.window_s, 5 * step_s, 1e-9) << workers;
    EXPECT_NEAR(s.step_s, step_s, 1e-9);
    const TraceEvent& last = s.trace.ranks[1].events.back();
    EXPECT_NEAR(last.wait_s, step_s - 3, 1e-9);
    EXPECT_EQ(last.bytes, 400);
  }
}

// No worker waits for another: each pushes, and takes an answer of the server at once.
TEST(SimulatedRules, AnAsynchronousServerTakesPushesAsTheyCome) {
  const LoweredSchedule lowered = flat(3);
  const Cluster cluster = free_cluster(3);
  std::vector<std::pair<int, double>> pushes;  // member and the worker's time
  SimulationInput input{
      .lowered = lowered, .costs = {unit_cost()}, .cluster = cluster, .num_steps = 4};
  input.slowdown = [](int rank, int64_t) { return rank == 0 ? 2.0 : 1.0; };
  input.own_rule = own_rule(
      [&pushes](const RuleConfig&) {
        Parts parts;
        parts.step = [](Port& port) -> Task {
          const Numbers step{static_cast<double>(port.update().step), 0, 0, 0};
          port.send(Port::kServer, 1, &port.gradient(), step);
          co_await port.receive(Port::kServer, 2, &port.weights());
        };
        parts.finish = [](Port& port) -> Task {
          port.send(Port::kServer, 0, nullptr, {});
          co_return;
        };
        parts.serve = [&pushes](Port& port) -> Task {
          Vector& got = port.make_vector(port.num_elements());
          int gone = 0;
          while (gone < port.num_members()) {
            const Message message = co_await port.receive_any(&got);
            gone += message.kind == 0 ? 1 : 0;
            if (message.kind == 1) {
              pushes.emplace_back(message.from, message.numbers[0]);
              port.send(message.from, 2, got);
            }
          }
        };
        return parts;
      },
      kServer);
  const Simulation s = simulate(input);
  // Steps of 3 s and 6 s: pushes at 3, 6, 9, 12 of members 1 and 2, at 6, 12, 18, 24 of member 0;
  // of equal times the lower member first.
  const std::vector<std::pair<int, double>> expected = {{1, 0}, {2, 0}, {0, 0}, {1, 1},
                                                        {2, 1}, {1, 2}, {2, 2}, {0, 1},
                                                        {1, 3}, {2, 3}, {0, 2}, {0, 3}};
  EXPECT_EQ(pushes, expected);
  EXPECT_EQ(s.trace.ranks[1].events.back().end_s, 12);
  EXPECT_EQ(s.trace.ranks[0].events.back().end_s, 24);
  EXPECT_EQ(s.trace.ranks[1].wait_s, 0);
}

// --- looking at what is there

// Member 2 looks nine times, a second apart. Members 0 and 1 compute 3 s and 4.5 s a step and send
// 100 bytes then: at 3, 6, 9 and 4.5, 9, 13.5, there a second and the latency later.
TEST(SimulatedRules, PollSeesExactlyWhatHasArrived) {
  constexpr int kLooks = 9;
  const LoweredSchedule lowered = flat(3);
  const auto look = [&lowered](double latency_s) {
    const Cluster cluster = network(3, 100, latency_s);
    std::vector<std::vector<int>> seen;  // at each look: 10 x sender + its step
    SimulationInput input{
        .lowered = lowered, .costs = {unit_cost(4)}, .cluster = cluster, .num_steps = 3};
    input.slowdown = [](int rank, int64_t) { return rank == 1 ? 1.5 : 1.0; };
    input.own_rule = own_rule(
        [&seen](const RuleConfig& config) {
          Parts parts;
          parts.step = [](Port& port) -> Task {
            const Numbers step{static_cast<double>(port.update().step), 0, 0, 0};
            port.send(2, 1, &port.make_vector(25), step);
            co_return;
          };
          if (config.member == 2) {
            parts.step = [&seen](Port& port) -> Task {
              Vector& got = port.make_vector(25);
              while (seen.size() < kLooks) {
                seen.emplace_back();
                Message message = co_await port.poll(&got);
                while (message.here) {
                  seen.back().push_back(10 * message.from + static_cast<int>(message.numbers[0]));
                  message = co_await port.poll(&got);
                }
                port.charge(100);  // 1 s
              }
            };
            parts.finish = [](Port& port) -> Task {  // one comes after all looks
              Vector& got = port.make_vector(25);
              co_await port.receive(1, 1, &got);
            };
          }
          return parts;
        },
        RuleTraits{.ordered = true});
    const Simulation s = simulate(input);
    EXPECT_EQ(event(s, 2, "0STEP0-2").end_s, 3 + kLooks);
    EXPECT_EQ(event(s, 2, "0STEP0-2").wait_s, 0);
    return seen;
  };
  using Seen = std::vector<std::vector<int>>;
  // At 3, 4, ...; of two that come at once the lower member's first.
  EXPECT_EQ(look(0.25), (Seen{{}, {}, {0}, {10}, {}, {1}, {}, {}, {2, 11}}));
  EXPECT_EQ(look(0), (Seen{{}, {0}, {}, {10}, {1}, {}, {}, {2, 11}, {}}));
}

// A message that leaves earlier and a long one that was on its way before: arrival decides.
TEST(SimulatedRules, ReceiveAnyGoesByArrivalNotBySending) {
  const LoweredSchedule lowered = flat(3);
  Cluster cluster = network(3, 100, 0);
  std::vector<int> order;
  SimulationInput input{.lowered = lowered, .costs = {unit_cost(4)}, .cluster = cluster};
  input.own_rule = own_rule(
      [&order](const RuleConfig& config) {
        const int member = config.member;
        Parts parts;
        parts.step = [=, &order](Port& port) -> Task {
          Vector& vector = port.make_vector(member == 0 ? 100 : 25);
          if (member == 0) {
            port.send(2, 5, vector);  // from 3 to 7
          } else if (member == 1) {
            port.charge(200);
            port.send(2, 6, vector);  // from 5 to 6
            port.charge(50);
            port.send(2, 7, vector);  // from 6 (5.5, but the link is busy) to 7
          } else {
            for (int i = 0; i < 3; ++i) {
              const Message message = co_await port.receive_any(&vector);
              order.push_back(message.kind);
            }
          }
        };
        return parts;
      },
      RuleTraits{.ordered = true});
  const Simulation s = simulate(input);
  EXPECT_EQ(order, (std::vector<int>{6, 5, 7}));  // of two at 7 the lower member's first
  EXPECT_EQ(event(s, 2, "0STEP0-2").end_s, 7);
  EXPECT_EQ(event(s, 2, "0STEP0-2").wait_s, 4);
}

}  // namespace
}  // namespace millrace
