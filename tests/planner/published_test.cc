// Published profiles: what PipeDream's public optimizer answered for them, and what the paper's
// planner makes of VGG-16. They are no part of the source tree: the folder MILLRACE_PROFILES holds
// them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>

#include "millrace/base/document.h"
#include "millrace/base/file.h"
#include "millrace/core/pipedream_graph.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

class Published : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MILLRACE_PROFILES");
    if (folder == nullptr || *folder == '\0') {
      GTEST_SKIP() << "MILLRACE_PROFILES names no folder of published profiles";
    }
    folder_ = folder;
  }

  Profile profile(const std::string& name) const {
    const std::string file = folder_ + "/" + name + ".graph.txt";
    return profile_from_pipedream_graph(read_file(file), file, name, 64);
  }

  std::string folder_;
};

Cluster cluster_of(const std::vector<int64_t>& machines, const std::vector<double>& bandwidths) {
  Cluster cluster;
  cluster.memory_bytes = 1e18;
  for (std::size_t k = 0; k < machines.size(); ++k) {
    NetworkLevel level;
    level.size = static_cast<int>(machines[k]);
    level.bandwidth_bytes_per_s = bandwidths[k];
    cluster.levels.push_back(level);
  }
  return cluster;
}

TEST_F(Published, ReleasedIsNeverSlowerThanThePublicOptimizer) {
  const Document reference = parse_json(
      "{\"settings\": " + read_file(folder_ + "/reference.json") + "}", "reference.json");
  int settings = 0;
  int equal = 0;
  for (Reader& setting : Reader(reference).objects("settings")) {
    const std::string name = setting.text("profile");
    SCOPED_TRACE(name + " " + setting.text("cluster"));
    const Profile graph = profile(name);
    const Cluster cluster =
        cluster_of(setting.integers("machines"), setting.numbers("bandwidth_bytes_per_s"));
    const double expected_s = setting.number("pipeline_time_s");
    const Plan plan =
        make_plan("pipedream-released",
                  {graph, cluster, cluster.num_devices(), {}, {}, setting.boolean("straight")});
    EXPECT_LE(plan.objective_s, expected_s * (1 + 1e-9));
    EXPECT_EQ(plan.num_used_ranks(), cluster.num_devices());
    if (name == "alexnet" || name == "vgg16") {  // their cuts are totally ordered
      EXPECT_NEAR(plan.objective_s, expected_s, 1e-6 * expected_s);
    }
    equal += plan.objective_s >= expected_s * (1 - 1e-9) ? 1 : 0;
    ++settings;
  }
  EXPECT_EQ(settings, 56);
  std::cout << equal << " of " << settings << " equal, the others faster\n";
}

TEST_F(Published, VggKeepsItsLinearLayersInOneMachine) {
  const Profile vgg = profile("vgg16");
  const Cluster cluster = cluster_of({4, 4}, {12e9, 1.25e9});
  const Plan plan = make_plan("pipedream", {vgg, cluster, 16, {}, {}, false});
  EXPECT_NEAR(plan.minibatch_s, 62.8e-3, 0.05e-3);
  EXPECT_NEAR(plan.data_parallel_minibatch_s, 664e-3, 0.5e-3);
  EXPECT_GE(plan.stages[0].ranks.size(), 12U);
  const auto has = [](const std::string& layer, const char* type) {
    return layer.find(type) != std::string::npos;
  };
  std::vector<int> machines;
  for (int s = 0; s < plan.num_stages(); ++s) {
    for (const std::string& layer : plan.stages[static_cast<std::size_t>(s)].layers) {
      EXPECT_TRUE(s == 0 || !has(layer, ":Conv2d")) << layer;
      EXPECT_TRUE(s > 0 || !has(layer, ":Linear")) << layer;
    }
    for (const int rank : plan.stages[static_cast<std::size_t>(s)].ranks) {
      if (s > 0) {
        machines.push_back(rank / 4);
      }
    }
  }
  EXPECT_EQ(std::set<int>(machines.begin(), machines.end()).size(), 1U);
  std::cout << describe(plan) << "\n";
}

TEST_F(Published, EveryProfileIsPlannedOnSixteenWorkers) {
  for (const char* name : {"alexnet", "vgg16", "resnet50", "gnmt"}) {
    const Profile graph = profile(name);
    for (const Cluster& cluster :
         {cluster_of({16}, {1.25e9}), cluster_of({4, 4}, {12e9, 1.25e9})}) {
      const Plan plan = make_plan("pipedream", {graph, cluster, 16, {}, {}, false});
      EXPECT_TRUE(plan.notes.empty()) << name;
      EXPECT_LE(plan.minibatch_s, plan.data_parallel_minibatch_s);
      EXPECT_LE(plan.minibatch_s, plan.one_worker_minibatch_s);
    }
  }
}

}  // namespace
}  // namespace millrace
