#include "millrace/core/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using testing::as_document;
using testing::Draws;
using testing::expect_round_trip;
using ::testing::HasSubstr;
using testing::with;
using testing::without;

const char kFile[] = R"([device]
memory_bytes = 16e9
relative_speed = 1.0
[[level]]
size = 4
bandwidth_bytes_per_s = 12e9
latency_s = 1e-6
[[level]]
size = 2
bandwidth_bytes_per_s = 1.25e9
latency_s = 1e-5
[[link]]
from = 5
to = 1
bandwidth_bytes_per_s = 1e8
latency_s = 1e-3
)";

Cluster from_text(const std::string& text) { return cluster_from(parse_toml(text, "c.toml")); }

TEST(ClusterTest, ReadsTheHandWrittenForm) {
  const Cluster cluster = from_text(kFile);
  EXPECT_EQ(cluster.num_devices(), 8);
  EXPECT_EQ(cluster.memory_bytes, 16e9);
  EXPECT_EQ(cluster.speed_of(7), 1.0);
  EXPECT_EQ(cluster.level_between(0, 3).size, 4);
  EXPECT_EQ(cluster.level_between(3, 4).size, 2);
  EXPECT_EQ(cluster.bandwidth_between(4, 7), 12e9);
  EXPECT_EQ(cluster.bandwidth_between(0, 4), 1.25e9);
  EXPECT_EQ(cluster.latency_between(0, 4), 1e-5);
  for (const auto& [a, b] : {std::pair(1, 5), std::pair(5, 1)}) {
    EXPECT_EQ(cluster.bandwidth_between(a, b), 1e8) << "overrides hold in both directions";
    EXPECT_EQ(cluster.latency_between(a, b), 1e-3);
  }
  EXPECT_EQ(caught([&] { cluster.level_between(2, 2); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(caught([&] { cluster.level_between(0, 8); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(caught([&] { cluster.speed_of(8); }).code(), ErrorCode::kInternal);
}

// Against a search by definition: the smallest k at which both devices share a component.
TEST(ClusterTest, LowestCommonLevelOfThreeLevels) {
  Cluster cluster;
  cluster.levels = {{2, 1, 0, {}, {}}, {3, 2, 0, {}, {}}, {2, 3, 0, {}, {}}};
  ASSERT_EQ(cluster.num_devices(), 12);
  for (int a = 0; a < 12; ++a) {
    for (int b = 0; b < 12; ++b) {
      if (a != b) {
        const double expected = a / 2 == b / 2 ? 1 : a / 6 == b / 6 ? 2 : 3;
        ASSERT_EQ(cluster.bandwidth_between(a, b), expected) << a << " " << b;
      }
    }
  }
}

TEST(ClusterTest, AllReduceIsTheRingsClosedForm) {
  const Cluster cluster = from_text(kFile);
  EXPECT_EQ(cluster.all_reduce_s({}, 1e9), 0);
  EXPECT_EQ(cluster.all_reduce_s({3}, 1e9), 0);
  EXPECT_DOUBLE_EQ(cluster.all_reduce_s({0, 1, 2, 3}, 1e9), 2.0 * 3 / 4 * 1e9 / 12e9 + 6 * 1e-6);
  EXPECT_DOUBLE_EQ(cluster.all_reduce_s({0, 2, 3, 6, 7}, 1e9),
                   2.0 * 4 / 5 * 1e9 / 1.25e9 + 8 * 1e-5)
      << "the slowest level that they span";
  EXPECT_DOUBLE_EQ(cluster.all_reduce_s({7, 3}, 1e9), 2.0 * 1 / 2 * 1e9 / 1.25e9 + 2 * 1e-5);
  EXPECT_DOUBLE_EQ(cluster.all_reduce_s({1, 5}, 1e9), 1e9 / 1e8 + 2e-3) << "an override counts";
}

TEST(ClusterTest, MeasuredAllReduceStandsInForTheLink) {
  Cluster cluster = from_text(kFile);
  cluster.levels[0].all_reduce_bandwidth_bytes_per_s = 3e9;
  cluster.levels[0].all_reduce_latency_s = 5e-4;
  EXPECT_DOUBLE_EQ(cluster.all_reduce_s({0, 1, 2}, 9e8), 2.0 * 2 / 3 * 9e8 / 3e9 + 5e-4)
      << "a measured latency counts once";
  EXPECT_EQ(cluster.bandwidth_between(0, 1), 12e9) << "messages keep the link's speed";
}

TEST(ClusterTest, FreeClusterCostsNothing) {
  const Cluster cluster = free_cluster(5);
  EXPECT_EQ(cluster.num_devices(), 5);
  EXPECT_EQ(1e12 / cluster.bandwidth_between(0, 4), 0);
  EXPECT_EQ(cluster.latency_between(0, 4), 0);
  EXPECT_EQ(cluster.all_reduce_s({0, 1, 2, 3, 4}, 1e12), 0);
  expect_round_trip(cluster, cluster_from);
}

TEST(ClusterTest, RandomClustersRoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    Cluster cluster;
    cluster.memory_bytes = draws.positive();
    cluster.action_overhead_s = draws.zero_or_more();
    cluster.measured_on = draws.coin() ? draws.name() : "";
    for (int64_t i = draws.between(1, 3); i > 0; --i) {
      NetworkLevel level;
      level.size = static_cast<int>(draws.between(1, 5));
      level.bandwidth_bytes_per_s = draws.positive();
      level.latency_s = draws.zero_or_more();
      if (draws.coin()) {
        level.all_reduce_bandwidth_bytes_per_s = draws.positive();
        level.all_reduce_latency_s = draws.zero_or_more();
      }
      cluster.levels.push_back(level);
    }
    if (draws.coin()) {
      cluster.relative_speed.assign(static_cast<std::size_t>(cluster.num_devices()), 0);
      for (double& speed : cluster.relative_speed) {
        speed = draws.positive();
      }
    }
    if (cluster.num_devices() > 1) {
      const int from = static_cast<int>(draws.between(1, cluster.num_devices() - 1));
      cluster.links.push_back({from, from - 1, draws.positive(), draws.zero_or_more()});
    }
    expect_round_trip(cluster, cluster_from);
  }
}

TEST(ClusterTest, DefaultsOfHandWrittenFiles) {
  const Cluster cluster = from_text("[[level]]\nsize = 2\nbandwidth_bytes_per_s = 1e9\n");
  EXPECT_EQ(cluster.memory_bytes, 16e9);
  EXPECT_EQ(cluster.relative_speed, std::vector<double>{1.0});
  EXPECT_EQ(cluster.latency_between(0, 1), 0);
  EXPECT_THAT(caught([] { from_text("version = 2\nartifact = \"cluster\"\n"); }).message(),
              HasSubstr("expected version 1"));
  EXPECT_THAT(caught([] { from_text("version = 1\nartifact = \"plan\"\n"); }).message(),
              HasSubstr("expected a cluster file, found `plan`"));
}

TEST(ClusterTest, RefusesWithKeyAndReason) {
  const Value good = to_value(from_text(kFile));
  const auto refuse = [&](const std::string& path, const Value& item, const std::string& key,
                          const std::string& part) {
    const Error error = caught([&] { cluster_from(as_document(with(good, path, item))); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << path;
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(part));
  };
  refuse("level.0.size", Value::of(0), "level[0].size", "1 or more");
  refuse("level.1.size", Value::of(int64_t{1} << 40), "level[1].size", "at most");
  refuse("level.1.size", Value::of(1 << 20), "level[1].size", "more than");
  refuse("level.0.bandwidth_bytes_per_s", Value::of(0), "level[0].bandwidth_bytes_per_s",
         "more than 0");
  refuse("level.0.bandwidth_bytes_per_s", Value::of(std::nan("")), "level[0].bandwidth_bytes_per_s",
         "finite");
  refuse("level.0.latency_s", Value::of(-1e-9), "level[0].latency_s", "0 or more");
  refuse("level.0.latncy_s", Value::of(1), "level[0].latncy_s", "did you mean `latency_s`");
  refuse("level", Value::list(), "level", "at least one");
  refuse("device.relative_speed", Value::of(0.0), "device.relative_speed", "above 0");
  refuse("device.relative_speed", Value::list({Value::of(1.0), Value::of(2.0)}),
         "device.relative_speed", "each of the 8 devices, found 2");
  refuse("device.memory_bytes", Value::of(-1), "device.memory_bytes", "more than 0");
  refuse("device.action_overhead_s", Value::of(-1), "device.action_overhead_s", "0 or more");
  refuse("link.0.from", Value::of(8), "link[0].from", "below 8");
  refuse("link.0.to", Value::of(-1), "link[0].to", "0 or more");
  refuse("link.0.to", Value::of(5), "link[0].to", "both ends");
  refuse("links", Value::list(), "links", "did you mean `link`");
  // The same pair, named the other way round.
  Value twice = *good.find("link");
  twice.array.push_back(with(with(twice.array[0], "from", Value::of(1)), "to", Value::of(5)));
  refuse("link", twice, "link[1]", "twice");
  EXPECT_EQ(caught([&] { cluster_from(as_document(without(good, "level.0.size"))); }).key(),
            "level[0].size");
}

}  // namespace
}  // namespace millrace
