// What is measured between processes, over real Gloo connections on this machine. Signs and shapes
// only: times are the machine's.
#if __has_include(<gloo/context.h>)
#include <gtest/gtest.h>

#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/measure_collectives.h"
#include "tests/comm/joined/joined_testing.h"

namespace millrace {
namespace {

TEST(MeasureProcesses, LevelsAreProcessesAndTheirRanks) {
  for (const auto& [num_ranks, num_processes, sizes] :
       {std::tuple{4, 2, std::vector<int>{2, 2}}, std::tuple{2, 2, std::vector<int>{2}},
        std::tuple{3, 2, std::vector<int>{3}}}) {
    Worlds worlds = joined_worlds(num_ranks, num_processes, 60);
    std::vector<Cluster> clusters(static_cast<std::size_t>(num_processes));
    const auto errors = run_ranks(num_processes, [&](int process) {
      const auto p = static_cast<std::size_t>(process);
      clusters[p] = measure_cluster(*worlds[p], "a machine");
    });
    EXPECT_EQ(thrown(errors), "");
    const Cluster& cluster = clusters.front();
    EXPECT_EQ(cluster.measured_on, "a machine");
    EXPECT_EQ(cluster.num_devices(), num_ranks);
    ASSERT_EQ(cluster.levels.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(cluster.levels[i].size, sizes[i]);
      EXPECT_GT(cluster.levels[i].latency_s, 0);
      EXPECT_LT(cluster.levels[i].latency_s, 1);
      EXPECT_GT(cluster.levels[i].bandwidth_bytes_per_s, 1e4);
      EXPECT_LT(cluster.levels[i].bandwidth_bytes_per_s, 1e13);
    }
    EXPECT_FALSE(cluster.levels.back().all_reduce_latency_s.has_value())
        << "programs between processes are timed, or measured one by one";
    close_all(worlds);
  }
}

TEST(MeasureProcesses, EveryCollectiveIsMeasuredOrTheOneAskedFor) {
  Worlds worlds = joined_worlds(4, 2, 60);
  std::vector<std::vector<CollectiveFit>> all(2);
  std::vector<std::vector<CollectiveFit>> one(2);
  const auto errors = run_ranks(2, [&](int process) {
    const auto p = static_cast<std::size_t>(process);
    all[p] = measure_collectives(*worlds[p], "auto", 1e6);
    one[p] = measure_collectives(*worlds[p], "tree", 1e6);
  });
  EXPECT_EQ(thrown(errors), "");
  EXPECT_EQ(all[0].size(), collectives().size()) << "all are offered for two";
  for (const CollectiveFit& fit : all[0]) {
    EXPECT_EQ(fit.num_members, 2);
    EXPECT_GT(fit.small_s, 0);
    EXPECT_GE(fit.large_s, fit.small_s);
    EXPECT_LT(fit.small_bytes, fit.large_bytes);
  }
  ASSERT_EQ(one[0].size(), 1U);
  EXPECT_EQ(one[0][0].name, "tree");
  close_all(worlds);
}

}  // namespace
}  // namespace millrace
#endif
