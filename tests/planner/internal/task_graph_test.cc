// FlexFlow's task graph: tasks and seconds counted by hand; delta simulation against building anew.
#include "millrace/planner/internal/task_graph.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/planner/internal/flexflow_testing.h"

namespace millrace::internal {
namespace {

using millrace::testing::flat;
using millrace::testing::random_configuration;
using millrace::testing::random_operators;
using millrace::testing::two_levels;

LayerProfile layer(const std::string& name, double forward_s, double backward_s,
                   int64_t output_bytes, int64_t parameter_bytes) {
  LayerProfile made;
  made.name = name;
  made.forward_s = forward_s;
  made.input_gradient_s = backward_s;
  made.output_bytes = output_bytes;
  made.parameter_bytes = parameter_bytes;
  return made;
}

Profile chain_of(std::vector<LayerProfile> layers) {
  Profile profile;
  profile.layers = std::move(layers);
  make_chain(profile);
  return profile;
}

int transfers(const TaskGraph& graph, int num_devices, int from, int to) {
  int count = 0;
  for (const TaskTime& task : graph.times()) {
    count += task.queue == num_devices + from * num_devices + to ? 1 : 0;
  }
  return count;
}

TEST(TaskGraph, HandsOverWhatPartsOnOtherDevicesNeed) {
  // a makes 80 bytes in two parts by samples on devices 0 and 1, b takes them whole on device 1.
  const Profile profile = chain_of({layer("a", 2, 4, 80, 0), layer("b", 3, 5, 8, 0)});
  const Cluster cluster = flat(2, 10);
  const SoapProblem problem = soap_problem(profile, cluster, 2);
  const TaskGraph graph(problem, {{{2, 1, 1}, 0, {}}, {{1, 1, 1}, 1, {}}});
  // Forward 2 + 1 parts, backward as many, one transfer of 40 bytes each way.
  EXPECT_EQ(graph.num_tasks(), 8);
  EXPECT_EQ(transfers(graph, 2, 0, 1), 1);
  EXPECT_EQ(transfers(graph, 2, 1, 0), 1);
  // 0..1 forward of a, 1..5 over the link, 5..8 and 8..13 b, 13..17 back, 17..19 backward of a.
  EXPECT_EQ(graph.cost_s(), 19);
}

TEST(TaskGraph, ReducesParametersThatSeveralHold) {
  // 60 bytes of parameters on three devices: 4/3 of them over each link of the ring, 8 s.
  const Profile profile = chain_of({layer("fc:Linear", 3, 6, 0, 60)});
  const Cluster cluster = flat(3, 10);
  const SoapProblem problem = soap_problem(profile, cluster, 3);
  const TaskGraph samples(problem, {{{3, 1, 1}, 0, {}}});
  EXPECT_EQ(samples.num_tasks(), 9);
  EXPECT_EQ(samples.cost_s(), 1 + 2 + 8);
  EXPECT_EQ(transfers(samples, 3, 2, 0), 1);
  // By channels each holds a third of its own, and there is nothing to reduce.
  const TaskGraph channels(problem, {{{1, 1, 3}, 0, {}}});
  EXPECT_EQ(channels.num_tasks(), 6);
  EXPECT_EQ(channels.cost_s(), 3);
}

TEST(TaskGraph, ChannelsAreReadWholeByLinearLayersAndOneByOneByPointwiseOnes) {
  const Profile profile = chain_of({layer("a:Linear", 1, 1, 40, 8), layer("b:ReLU", 1, 1, 40, 0),
                                    layer("c:Linear", 1, 1, 40, 8)});
  const Cluster cluster = flat(2, 10);
  const SoapProblem problem = soap_problem(profile, cluster, 2);
  const Configuration split{{1, 1, 2}, 0, {}};
  const TaskGraph graph(problem, {split, split, split});
  EXPECT_EQ(transfers(graph, 2, 0, 1), 2);  // of b to c: 20 bytes, and the gradient of the others
  EXPECT_EQ(transfers(graph, 2, 1, 0), 2);
  // Three forwards of 0.5 s, 2 s of transfers, three backwards and 2 s back.
  EXPECT_EQ(graph.cost_s(), 3 * 0.5 + 2 + 3 * 0.5 + 2);
}

TEST(TaskGraph, RowsAlignBetweenConvolutions) {
  const Profile profile =
      chain_of({layer("a:Conv2d", 1, 1, 40, 0), layer("b:Conv2d", 1, 1, 40, 0)});
  const Cluster cluster = flat(4, 10);
  const SoapProblem problem = soap_problem(profile, cluster, 4);
  const TaskGraph same(problem, {{{1, 4, 1}, 0, {}}, {{1, 4, 1}, 0, {}}});
  EXPECT_EQ(same.num_tasks(), 16);
  const TaskGraph halves(problem, {{{1, 4, 1}, 0, {}}, {{1, 2, 1}, 0, {}}});
  // Quarters 0 to 3 on 0 to 3, halves on 0 and 1: quarter 1 goes to 0, quarters 2 and 3 to 1.
  EXPECT_EQ(transfers(halves, 4, 1, 0) + transfers(halves, 4, 2, 1) + transfers(halves, 4, 3, 1),
            3);
  EXPECT_EQ(halves.num_tasks(), 4 + 2 + 4 + 2 + 6);
}

TEST(TaskGraph, UsesSpeedsLevelsAndLatencies) {
  Profile profile = chain_of({layer("a", 4, 0, 100, 0), layer("b", 6, 0, 0, 0)});
  Cluster cluster = two_levels(2, 2, 100, 10);
  cluster.levels[1].latency_s = 3;
  cluster.relative_speed = {1, 2, 1, 0.5};
  const SoapProblem problem = soap_problem(profile, cluster, 4);
  const TaskGraph near(problem, {{{1, 1, 1}, 0, {}}, {{1, 1, 1}, 1, {}}});
  EXPECT_EQ(near.cost_s(), 4 + 1 + 3 + 1);
  const TaskGraph far(problem, {{{1, 1, 1}, 0, {}}, {{1, 1, 1}, 3, {}}});
  EXPECT_EQ(far.cost_s(), 4 + 13 + 12 + 13);
}

TEST(TaskGraph, AQueueTakesWhatIsReadyFirst) {
  // Two branches on one device; the one through the other device comes back later.
  Profile profile = chain_of({layer("a", 1, 0, 0, 0), layer("b", 2, 0, 0, 0),
                              layer("c", 5, 0, 0, 0), layer("d", 1, 0, 0, 0)});
  profile.edges = {{"a", "b"}, {"a", "c"}, {"b", "d"}, {"c", "d"}};
  const Cluster cluster = flat(2, 1e9);
  const SoapProblem problem = soap_problem(profile, cluster, 2);
  const Configuration here{{1, 1, 1}, 0, {}};
  const Configuration there{{1, 1, 1}, 1, {}};
  EXPECT_EQ(TaskGraph(problem, {here, here, here, here}).cost_s(), 9);
  EXPECT_EQ(TaskGraph(problem, {here, here, there, here}).cost_s(), 7);
}

// Edits, some of them undone, some of two operators; after each the graph holds what a new one
// does.
int compare(int devices, int layers, int edits, bool free, unsigned seed) {
  std::mt19937 random(seed);
  const Profile profile = random_operators(layers, random);
  const Cluster cluster =
      devices > 8 ? two_levels(8, devices / 8, 12e9, 1.25e9) : flat(devices, 2e9);
  const SoapProblem problem = soap_problem(profile, cluster, devices);
  TaskGraph graph(problem, data_parallel_strategy(problem));
  int64_t simulated = graph.num_simulated();
  int equal = 0;
  int shorter = 0;
  for (int n = 0; n < edits; ++n) {
    const int op = static_cast<int>(random() % layers);
    std::vector<TaskGraph::Edit> edit = {{op, random_configuration(problem, op, free, random)}};
    if (n % 7 == 0) {
      const int next = (op + 1) % layers;
      edit.emplace_back(next, random_configuration(problem, next, free, random));
    }
    const std::vector<TaskTime> before = graph.times();
    const double cost_s = graph.edit(edit);
    shorter += graph.num_simulated() - simulated < graph.num_tasks() ? 1 : 0;
    simulated = graph.num_simulated();
    const TaskGraph anew(problem, graph.strategy());
    equal += cost_s == anew.cost_s() && graph.times() == anew.times() ? 1 : 0;
    if (n % 3 != 0) {
      const Strategy edited = graph.strategy();
      graph.undo();
      EXPECT_EQ(graph.times(), before);
      EXPECT_EQ(TaskGraph(problem, graph.strategy()).cost_s(), graph.cost_s());
    }
  }
  EXPECT_GT(shorter, edits / 2);  // else nothing was kept or shifted, and nothing shown
  EXPECT_GT(graph.num_shifted(), graph.num_simulated() / 20);
  return equal;
}

TEST(TaskGraph, DeltaIsFullSimulationBitForBit) {
  EXPECT_EQ(compare(4, 5, 4000, false, 1), 4000);
  EXPECT_EQ(compare(4, 12, 4000, true, 2), 4000);
  EXPECT_EQ(compare(6, 9, 1000, false, 3), 1000);
  EXPECT_EQ(compare(32, 12, 800, false, 4), 800);
  EXPECT_EQ(compare(32, 20, 200, true, 5), 200);
}

TEST(TaskGraph, TimesDependOnTheStrategyNotOnTheWayToIt) {
  std::mt19937 random(6);
  Profile profile = random_operators(11, random);
  const Cluster cluster = flat(4, 2e9);
  const SoapProblem problem = soap_problem(profile, cluster, 4);
  std::shuffle(profile.edges.begin(), profile.edges.end(), random);
  const SoapProblem shuffled = soap_problem(profile, cluster, 4);
  Strategy target;
  for (int op = 0; op < 11; ++op) {
    target.push_back(random_configuration(problem, op, false, random));
  }
  const TaskGraph expected(problem, target);
  EXPECT_EQ(TaskGraph(shuffled, target).times(), expected.times());
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (int round = 0; round < 20; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    TaskGraph graph(problem, data_parallel_strategy(problem));
    for (const int op : order) {
      graph.edit({{op, target[op]}});
    }
    EXPECT_EQ(graph.times(), expected.times());
  }
}

// Layers that cost nothing and free links: many tasks are ready at one moment.
TEST(TaskGraph, DeltaIsExactWhereTasksTakeNoTime) {
  std::mt19937 random(7);
  Profile profile = random_operators(9, random);
  for (LayerProfile& free : profile.layers) {
    if (random() % 2 == 0) {
      free.forward_s = free.input_gradient_s = 0;
      free.output_bytes = 0;
    }
  }
  const Cluster cluster = free_cluster(4);
  const SoapProblem problem = soap_problem(profile, cluster, 4);
  TaskGraph graph(problem, data_parallel_strategy(problem));
  for (int n = 0; n < 500; ++n) {
    const int op = static_cast<int>(random() % 9);
    graph.edit({{op, random_configuration(problem, op, false, random)}});
    ASSERT_EQ(graph.times(), TaskGraph(problem, graph.strategy()).times());
  }
}

}  // namespace
}  // namespace millrace::internal
