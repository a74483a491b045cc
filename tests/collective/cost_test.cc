// Times of collectives against closed forms. alpha is the latency, beta seconds per element.
#include "millrace/collective/cost.h"

#include <gmock/gmock.h>

#include <numeric>

#include "tests/base/caught.h"
#include "tests/collective/configs.h"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr double kAlpha = 3e-5;
constexpr double kBeta = 4e-9;  // 4 bytes at 1 GB/s
constexpr double kElementBytes = 4;

NetworkLevel level(int size, double bandwidth_bytes_per_s, double latency_s) {
  NetworkLevel made;
  made.size = size;
  made.bandwidth_bytes_per_s = bandwidth_bytes_per_s;
  made.latency_s = latency_s;
  return made;
}

Cluster uniform(int size, double latency_s = kAlpha) {
  Cluster cluster;
  cluster.levels = {level(size, 1e9, latency_s)};
  return cluster;
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double time_of(const std::string& name, const CollectiveConfig& config, const Cluster& cluster,
               std::vector<int> ranks = {}) {
  ranks = ranks.empty() ? first_ranks(config.num_members) : ranks;
  return time_program(make_collective(name, config), ranks, cluster, plain_bytes(kElementBytes))
      .seconds;
}

// Equal but for rounding: sums of at most some hundred terms.
testing::Matcher<double> near(double seconds) {
  return testing::DoubleNear(seconds, 1e-10 * seconds);
}

TEST(CollectiveCostTest, UniformLinksGiveTheClosedForms) {
  const auto n = static_cast<double>(5040 * 16);
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
    const CollectiveConfig config{p, static_cast<int64_t>(n), {}, {}};
    const Cluster cluster = uniform(16);
    const double share = n / p * kBeta;
    EXPECT_THAT(time_of("ring", config, cluster), near(2 * (p - 1) * (kAlpha + share))) << p;
    EXPECT_THAT(time_of("asa", config, cluster), near(2 * (kAlpha + (p - 1) * share))) << p;
    EXPECT_THAT(time_of("server", config, cluster), near(2 * (kAlpha + (p - 1) * n * kBeta))) << p;
    if ((p & (p - 1)) == 0) {
      const double log2_p = std::log2(p);
      EXPECT_THAT(time_of("halving-doubling", config, cluster),
                  near(2 * (log2_p * kAlpha + (p - 1) * share)))
          << p;
      EXPECT_THAT(time_of("tree", config, cluster), near(2 * log2_p * (kAlpha + n * kBeta))) << p;
    }
  }
  for (const std::vector<int>& grid : {std::vector<int>{4, 4}, {2, 8}, {8, 2}, {2, 2, 4}}) {
    const int steps =
        2 * (std::accumulate(grid.begin(), grid.end(), 0) - static_cast<int>(grid.size()));
    EXPECT_THAT(time_of("grid", {16, static_cast<int64_t>(n), grid, {}}, uniform(16)),
                near(steps * kAlpha + 2 * 15 * n / 16 * kBeta));
  }
}

TEST(CollectiveCostTest, NothingToSendTakesNoTime) {
  for (const CollectiveEntry& entry : collectives()) {
    if (entry.builtin != nullptr) {
      EXPECT_EQ(time_of(entry.name, {1, 100, {}, {}}, uniform(4)), 0);
      EXPECT_EQ(time_of(entry.name, {4, 0, {}, {}}, uniform(4)), 0);
      EXPECT_EQ(time_of(entry.name, {4, 100, {}, {}}, free_cluster(4)), 0);
    }
  }
}

TEST(CollectiveCostTest, EveryMembersEndIsKnown) {
  const CollectiveTiming timing = time_program(make_collective("server", {3, 1000, {}, {}}),
                                               {0, 1, 2}, uniform(3), plain_bytes(kElementBytes));
  const double n = 1000 * kBeta;
  // Member 0 is done when its last answer has left, the others when theirs is there.
  EXPECT_THAT(timing.member_s, testing::ElementsAre(near(kAlpha + 4 * n), near(2 * kAlpha + 3 * n),
                                                    near(2 * kAlpha + 4 * n)));
}

// A message of two blocks has the bytes of both.
TEST(CollectiveCostTest, BlocksAreCountedOneByOne) {
  const auto with_scale = [](int64_t count) { return static_cast<double>(count) + 8; };
  const CollectiveProgram program = make_collective("halving-doubling", {4, 400, {}, {}});
  const double seconds = time_program(program, first_ranks(4), uniform(4, 0), with_scale).seconds;
  EXPECT_THAT(seconds, near((208 + 108 + 108 + 2 * 108) * 1e-9));
}

// Two machines of 4 or four of 2, whose outer links have a tenth of the bandwidth.
Cluster machines(int size, int count) {
  Cluster cluster;
  cluster.levels = {level(size, 1e10, 0), level(count, 1e9, 0)};
  return cluster;
}

// The same where every device has an outer link of its own.
Cluster own_links(int size, int count) {
  Cluster cluster = machines(size, count);
  for (int a = 0; a < size * count; ++a) {
    for (int b = a + 1; b < size * count; ++b) {
      if (a / size != b / size) {
        cluster.links.push_back({a, b, 1e9, 0});
      }
    }
  }
  return cluster;
}

// PowerAI DDL's grid against a flat ring at 10:1, P = 8.
TEST(CollectiveCostTest, AGridGainsWhatItsOuterLinksAllow) {
  const int64_t n = 8 * 1000;
  const auto gain = [n](const Cluster& cluster, const std::vector<int>& grid) {
    return time_of("ring", {8, n, {}, {}}, cluster) / time_of("grid", {8, n, grid, {}}, cluster);
  };
  EXPECT_NEAR(gain(own_links(4, 2), {4, 2}), 4.4, 0.05 * 4.4);
  EXPECT_NEAR(gain(own_links(2, 4), {2, 4}), 2.1, 0.05 * 2.1);
  EXPECT_NEAR(gain(machines(4, 2), {4, 2}), 1.52, 0.05 * 1.52);
  EXPECT_NEAR(gain(machines(2, 4), {2, 4}), 1.09, 0.05 * 1.09);
}

// The slow dimension first: what the right order saves, with own links.
TEST(CollectiveCostTest, AGridInTheWrongOrderIsSlower) {
  const int64_t n = 8 * 1000;
  const double right_4x2 = time_of("grid", {8, n, {4, 2}, {}}, own_links(4, 2));
  const double wrong_4x2 =
      time_of("grid", {8, n, {2, 4}, {}}, own_links(4, 2), {0, 4, 1, 5, 2, 6, 3, 7});
  EXPECT_NEAR(wrong_4x2 / right_4x2, 2.7, 0.05 * 2.7);
  const double right_2x4 = time_of("grid", {8, n, {2, 4}, {}}, own_links(2, 4));
  const double wrong_2x4 =
      time_of("grid", {8, n, {4, 2}, {}}, own_links(2, 4), {0, 2, 4, 6, 1, 3, 5, 7});
  EXPECT_NEAR(wrong_2x4 / right_2x4, 1.8, 0.05 * 1.8);
}

// Latency alone: 14 steps against 8 and 6.
TEST(CollectiveCostTest, SmallMessagesGainByFewerSteps) {
  Cluster cluster = uniform(8);
  cluster.levels[0].bandwidth_bytes_per_s = 1e30;
  const double flat = time_of("ring", {8, 8, {}, {}}, cluster);
  EXPECT_NEAR(flat / time_of("grid", {8, 8, {4, 2}, {}}, cluster), 1.75, 1e-6);
  EXPECT_NEAR(flat / time_of("grid", {8, 8, {2, 2, 2}, {}}, cluster), 14.0 / 6, 1e-6);
}

// Each end of a message takes the device's overhead, which the server pays for everybody.
TEST(CollectiveCostTest, OverheadIsPaidAtBothEnds) {
  Cluster cluster = uniform(8);
  cluster.action_overhead_s = 1e-5;
  const double n = 800 * kBeta;
  const double hop = kAlpha + 2e-5;
  EXPECT_THAT(time_of("ring", {8, 800, {}, {}}, cluster), near(14 * (hop + n / 8)));
  EXPECT_THAT(time_of("tree", {8, 800, {}, {}}, cluster), near(6 * (hop + n)));
  EXPECT_THAT(time_of("halving-doubling", {8, 800, {}, {}}, cluster), near(6 * hop + 14 * n / 8));
  // n is less than the overhead: seven messages taken, seven sent, and the way there and back.
  EXPECT_THAT(time_of("server", {8, 800, {}, {}}, cluster), near(2 * (hop + n) + 12 * 1e-5));
}

TEST(CollectiveCostTest, ASlowLinkHoldsUpTheRing) {
  Cluster cluster = uniform(4, 0);
  cluster.links.push_back({2, 1, 1e6, 0});
  // Six chunks cross the slow link one after another.
  EXPECT_THAT(time_of("ring", {4, 400, {}, {}}, cluster), near(6 * 4e-4));
  EXPECT_THAT(time_of("ring", {4, 400, {}, {}}, cluster, {2, 0, 1, 3}), near(6 * 4e-7));
}

TEST(CollectiveCostTest, RanksMustBeDevices) {
  const CollectiveProgram ring = make_collective("ring", {2, 10, {}, {}});
  const auto why = [&ring](const std::vector<int>& ranks) {
    const Error error =
        caught([&] { time_program(ring, ranks, uniform(4), plain_bytes(kElementBytes)); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_THAT(why({0, 4}), HasSubstr("rank 4 needs a device, but the cluster has 4"));
  EXPECT_THAT(why({1, 1}), HasSubstr("rank 1 is two members"));
  EXPECT_THAT(why({0, 1, 2}), HasSubstr("expected a rank for each of 2 members, found 3"));
}

CollectiveChoice chosen(int count, int64_t elements, const Cluster& cluster) {
  return choose_collective(first_ranks(count), elements, cluster, plain_bytes(kElementBytes));
}

// Where a message costs its ends as much as its way: few messages in few steps.
TEST(ChooseCollectiveTest, LogarithmicForTiny) {
  Cluster cluster = uniform(32);
  cluster.action_overhead_s = kAlpha;
  for (const int64_t elements : {1, 32}) {
    const CollectiveChoice choice = chosen(32, elements, cluster);
    EXPECT_THAT(choice.best.name, testing::AnyOf("tree", "halving-doubling")) << choice.reason;
  }
  // Where it costs only the way, two hops are the least.
  EXPECT_THAT(chosen(32, 32, uniform(32)).best.name, testing::AnyOf("asa", "server"));
}

// The least that a member can send is 2(P-1)/P of everything.
TEST(ChooseCollectiveTest, FewestBytesForLarge) {
  for (const int p : {2, 3, 6, 8, 12}) {
    const auto n = 1e7;
    const CollectiveChoice choice = chosen(p, static_cast<int64_t>(n), uniform(12));
    const double least_s = 2 * (p - 1) * n / p * kBeta;
    EXPECT_GE(choice.best.seconds, least_s);
    EXPECT_LE(choice.best.seconds, 1.02 * least_s) << choice.reason;
    EXPECT_THAT(choice.best.name, testing::AnyOf("ring", "asa", "halving-doubling", "grid"));
  }
}

// Few bytes between machines: a grid of the machines, or what sends as few.
TEST(ChooseCollectiveTest, MachinesShareTheirLink) {
  const CollectiveChoice choice = chosen(6, 6000000, machines(3, 2));
  EXPECT_EQ(choice.best.name, "grid") << choice.reason;
  EXPECT_EQ(choice.best.grid, (std::vector<int>{3, 2}));
  EXPECT_THAT(choice.reason,
              testing::StartsWith("grid 3x2: 27.2 ms for 24.0 MB over 6 ranks; next is"));
}

TEST(ChooseCollectiveTest, TheBestStandsFirst) {
  for (const int64_t elements : {0, 1, 100, 10000, 10000000}) {
    const CollectiveChoice choice = chosen(8, elements, machines(2, 4));
    EXPECT_EQ(choice.best.name, choice.all[0].name);
    for (std::size_t i = 1; i < choice.all.size(); ++i) {
      EXPECT_LE(choice.best.seconds, choice.all[i].seconds * (1 + 1e-9));
      EXPECT_LE(choice.all[i == 1 ? 1 : i - 1].seconds, choice.all[i].seconds);
    }
  }
  EXPECT_EQ(chosen(1, 100, uniform(4)).best.seconds, 0);
}

TEST(ChooseCollectiveTest, GridsOfTwoAndThreeSizesInAnyOrder) {
  const CollectiveChoice choice =
      choose_collective(first_ranks(12), 100, uniform(12), plain_bytes(kElementBytes));
  std::vector<std::vector<int>> grids;
  for (const TimedCollective& timed : choice.all) {
    if (timed.name == "grid") {
      grids.push_back(timed.grid);
    }
  }
  EXPECT_THAT(grids, testing::UnorderedElementsAreArray(std::vector<std::vector<int>>{
                         {2, 6}, {6, 2}, {3, 4}, {4, 3}, {2, 2, 3}, {2, 3, 2}, {3, 2, 2}}));
}

TEST(ChooseCollectiveTest, HostsAreTheMachinesOfTheCluster) {
  EXPECT_THAT(collective_config({0, 1, 4, 6}, 9, machines(4, 2)).host_of_member,
              testing::ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(collective_config({0, 1}, 9, uniform(4)).host_of_member, testing::IsEmpty());
}

}  // namespace
}  // namespace millrace
