// Ranks of a host share its link: messages of a schedule, of rules, and reductions of several
// groups at once.
#include <gtest/gtest.h>

#include "tests/sim/rule_testing.h"

namespace millrace {
namespace {

using testing::event;
using testing::flat;
using testing::own_rule;
using testing::Parts;
using testing::program;
using testing::stage;
using testing::unit_cost;

// Ranks 0 and 1 on one host, 2 and 3 on the other; 100 bytes/s between them.
Cluster two_hosts(double latency_s = 0) {
  Cluster cluster = free_cluster(2);
  NetworkLevel between;
  between.size = 2;
  between.bandwidth_bytes_per_s = 100;
  between.latency_s = latency_s;
  cluster.levels.push_back(between);
  return cluster;
}

// 0 and 1 send 100 bytes each at 1, to 2 and 3; what comes back meanwhile goes its own way.
TEST(SharedLinks, MessagesOfTwoRanksOfAHostFollowEachOther) {
  const LoweredSchedule lowered = program({"0F0 0SEND_F0>2", "2F0 2SEND_F0>3 2RECV_B0<3",
                                           "1RECV_F0<0 1F0", "3F0 3SEND_B0>1 3RECV_F0<1"},
                                          {{0}, {2}, {1}, {3}});
  Cluster cluster = two_hosts(0.5);
  SimulationInput input{
      .lowered = lowered, .costs = std::vector<StageCost>(4, stage(1, 2, 100)), .cluster = cluster};
  Simulation s = simulate(input);
  EXPECT_EQ(event(s, 2, "1RECV_F0<0").end_s, 2.5);
  EXPECT_EQ(event(s, 3, "3RECV_F0<1").end_s, 3.5);
  EXPECT_EQ(event(s, 1, "2RECV_B0<3").end_s, 2.5);
  // A link of its own for one of them.
  cluster.links.push_back({1, 3, 50, 0});
  s = simulate(input);
  EXPECT_EQ(event(s, 2, "1RECV_F0<0").end_s, 2.5);
  EXPECT_EQ(event(s, 3, "3RECV_F0<1").end_s, 3);
}

// Each of two pairs takes 4 s by itself, from 3 s on; one begins in the background.
TEST(SharedLinks, ReductionsOfTwoGroupsOverOneLinkFollowEachOther) {
  const LoweredSchedule lowered = flat(4);
  const Cluster cluster = two_hosts();
  for (const bool background : {false, true}) {
    SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
    input.own_rule = own_rule([background](const RuleConfig& config) {
      const int member = config.member;
      Parts parts;
      parts.step = [=](Port& port) -> Task {
        const std::vector<int> pair{member % 2, member % 2 + 2};
        const int group = port.make_group(pair);
        const Range all{0, port.num_elements()};
        if (background) {
          const int64_t number = port.start_all_reduce(port.gradient(), all, group);
          co_await port.reduced(number);
        } else {
          co_await port.all_reduce(port.gradient(), all, group);
        }
      };
      return parts;
    });
    const Simulation s = simulate(input);
    EXPECT_EQ(event(s, 0, "0STEP0-3").end_s, 7);
    EXPECT_EQ(event(s, 2, "0STEP0-3").end_s, 7);
    EXPECT_EQ(event(s, 1, "0STEP0-3").end_s, 11);
    EXPECT_EQ(event(s, 3, "0STEP0-3").end_s, 11);
  }
}

// Three workers push 400 bytes to the server beside member 0, at 3 s: its neighbour's is there at
// once, those of the other host 4 and 8 s later.
TEST(SharedLinks, PushesToAServerShareItsHostsLink) {
  const LoweredSchedule lowered = flat(4);
  const Cluster cluster = two_hosts();
  std::vector<std::pair<int, double>> pushes;
  SimulationInput input{.lowered = lowered, .costs = {unit_cost()}, .cluster = cluster};
  input.own_rule = own_rule(
      [&pushes](const RuleConfig&) {
        Parts parts;
        parts.step = [](Port& port) -> Task {
          port.send(Port::kServer, 1, port.gradient());
          co_return;
        };
        parts.serve = [&pushes](Port& port) -> Task {
          Vector& got = port.make_vector(port.num_elements());
          for (int i = 0; i < 4; ++i) {
            const Message message = co_await port.receive_any(&got);
            pushes.emplace_back(message.from, port.now_s());
          }
        };
        return parts;
      },
      testing::kServer);
  simulate(input);
  EXPECT_EQ(pushes, (std::vector<std::pair<int, double>>{{0, 3.0}, {1, 3.0}, {2, 7.0}, {3, 11.0}}));
}

// A pipeline's message behind another stage's reduction over the same link.
TEST(SharedLinks, AMessageWaitsForAReductionOnItsWay) {
  LoweredSchedule lowered = program({"0F0 0B0 0REDUCE 0STEP", "1F0 1F1 1F2 1F3 1SEND_F0>2",
                                     "2RECV_F0<1", "0F0 0B0 0REDUCE 0STEP"},
                                    {{0}, {1}, {2}, {0}});
  const Cluster cluster = two_hosts();
  SimulationInput input{.lowered = lowered,
                        .costs = {unit_cost(), stage(1, 2, 100), unit_cost()},
                        .cluster = cluster};
  const Simulation s = simulate(input);
  EXPECT_EQ(event(s, 0, "0REDUCE").end_s, 7);
  EXPECT_EQ(event(s, 2, "2RECV_F0<1").end_s, 8);
}

}  // namespace
}  // namespace millrace
