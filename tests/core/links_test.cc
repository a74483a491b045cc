#include "millrace/core/links.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace {
namespace {

constexpr double kFree = std::numeric_limits<double>::infinity();

// Two hosts of two devices: free within, `bandwidth` between them.
Cluster two_hosts(double bandwidth, double latency_s = 0, double inside = kFree) {
  Cluster cluster;
  cluster.levels.resize(2);
  cluster.levels[0].size = 2;
  cluster.levels[0].bandwidth_bytes_per_s = inside;
  cluster.levels[1].size = 2;
  cluster.levels[1].bandwidth_bytes_per_s = bandwidth;
  cluster.levels[1].latency_s = latency_s;
  return cluster;
}

TEST(LinkMapTest, DevicesOfAHostShareItsLinkInEachDirection) {
  const LinkMap map(two_hosts(100, 0.5, 1000));
  EXPECT_EQ(map.route(0, 2).out_link, map.route(1, 3).out_link);
  EXPECT_EQ(map.route(0, 2).in_link, map.route(1, 3).in_link);
  EXPECT_NE(map.route(0, 2).out_link, map.route(2, 0).in_link);
  EXPECT_NE(map.route(0, 2).out_link, map.route(0, 1).out_link);
  EXPECT_NE(map.route(0, 1).out_link, map.route(1, 0).out_link);
  EXPECT_EQ(map.route(1, 2).bandwidth_bytes_per_s, 100);
  EXPECT_EQ(map.route(1, 2).latency_s, 0.5);
  EXPECT_EQ(map.route(1, 0).bandwidth_bytes_per_s, 1000);
  EXPECT_TRUE(map.route(1, 0).inside);
  EXPECT_FALSE(map.route(1, 2).inside);
}

TEST(LinkMapTest, AnOverrideIsALinkOfItsOwnInEachDirection) {
  Cluster cluster = two_hosts(100);
  cluster.links = {{1, 3, 10, 2}, {0, 3, 20, 0}};
  const LinkMap map(cluster);
  EXPECT_EQ(map.route(3, 1).bandwidth_bytes_per_s, 10);
  EXPECT_EQ(map.route(3, 1).latency_s, 2);
  EXPECT_NE(map.route(1, 3).out_link, map.route(3, 1).out_link);
  EXPECT_NE(map.route(1, 3).out_link, map.route(0, 2).out_link);
  EXPECT_NE(map.route(1, 3).in_link, map.route(0, 3).in_link);
}

TEST(LinkMapTest, AReductionTakesTheLinksOfEachOuterLevelThatItSpans) {
  const LinkMap map(two_hosts(100, 0, 1000));
  EXPECT_TRUE(map.share_of({0, 1}, 50).links.empty());
  const LinkMap::Share across = map.share_of({1, 3}, 50);
  EXPECT_EQ(across.links.size(), 4U);
  EXPECT_EQ(across.seconds, 0.5);
  const LinkMap::Share all = map.share_of({0, 1, 2, 3}, 50);
  EXPECT_EQ(all.links, across.links);
  EXPECT_EQ(all.seconds, 0.5);
  EXPECT_TRUE(LinkMap(two_hosts(kFree)).share_of({0, 1, 2, 3}, 50).links.empty());
}

TEST(LinkMapTest, OrderMattersWhereThreeMeetOnALinkThatTakesTime) {
  EXPECT_TRUE(LinkMap(two_hosts(100)).shares_links({0, 1, 2}));
  EXPECT_FALSE(LinkMap(two_hosts(100)).shares_links({0, 2}));
  EXPECT_FALSE(LinkMap(two_hosts(kFree, 0, 10)).shares_links({0, 1, 2, 3}));
}

TEST(LinkCalendarTest, TwoSendersOfAHostTakeTurnsAndDirectionsDoNotMeet) {
  LinkCalendar calendar(two_hosts(100, 0.25));
  EXPECT_EQ(calendar.carry(0, 2, 1, 100), 2.25);
  EXPECT_EQ(calendar.carry(1, 3, 1.5, 100), 3.25);
  EXPECT_EQ(calendar.carry(2, 0, 1.5, 100), 2.75);
  EXPECT_EQ(calendar.carry(0, 1, 1.5, 100), 1.5);
  EXPECT_EQ(calendar.carry(1, 1, 1.5, 100), 1.5);
}

// 0 sends to 2 and 1 to 2: the second waits for the receiver's link, and what 1 sends to 3
// meanwhile, and is short, does not wait for it. What 1 sends to 2 after that stays behind.
TEST(LinkCalendarTest, AShortMessagePassesOneOfOtherEndsThatWaits) {
  Cluster cluster = two_hosts(100);
  cluster.levels[0].size = 1;
  cluster.levels[1].size = 4;
  LinkCalendar calendar(cluster);
  EXPECT_EQ(calendar.carry(0, 2, 0, 1000), 10);
  EXPECT_EQ(calendar.carry(1, 2, 1, 100), 11);
  EXPECT_EQ(calendar.carry(1, 3, 2, 300), 5);
  EXPECT_EQ(calendar.carry(1, 3, 2, 600), 17);
  EXPECT_EQ(calendar.carry(1, 2, 3, 100), 18);
  EXPECT_EQ(calendar.carry(1, 2, 3, 0), 18);
}

TEST(LinkCalendarTest, InsideAHostEachPairHasALink) {
  LinkCalendar calendar(free_cluster(3));
  EXPECT_EQ(calendar.carry(0, 1, 1, 1000), 1);
  Cluster cluster = free_cluster(3);
  cluster.levels[0].bandwidth_bytes_per_s = 100;
  LinkCalendar slow(cluster);
  EXPECT_EQ(slow.carry(0, 1, 0, 1000), 10);
  EXPECT_EQ(slow.carry(0, 2, 1, 100), 2);
  EXPECT_EQ(slow.carry(2, 1, 1, 100), 2);
  EXPECT_EQ(slow.carry(0, 1, 1, 100), 11);
  EXPECT_EQ(slow.carry(1, 0, 1, 100), 2);
}

// Two pairs over one link, as long as both; then a message behind them.
TEST(LinkCalendarTest, ReductionsOverOneLinkFollowEachOther) {
  LinkCalendar calendar(two_hosts(100));
  EXPECT_EQ(calendar.reduce({0, 2}, 0, 200, 2), 2);
  EXPECT_EQ(calendar.reduce({1, 3}, 1, 200, 2), 4);
  EXPECT_EQ(calendar.carry(3, 0, 1, 100), 5);
  // Inside a host nothing is in the way.
  EXPECT_EQ(calendar.reduce({0, 1}, 1, 200, 0), 1);
}

// A reduction of 3 s that keeps links for 2 of them.
TEST(LinkCalendarTest, LatencyOfAReductionKeepsNoLink) {
  LinkCalendar calendar(two_hosts(100));
  EXPECT_EQ(calendar.reduce({0, 2}, 0, 200, 3), 3);
  EXPECT_EQ(calendar.reduce({1, 3}, 0, 200, 3), 5);
}

TEST(LinkCalendarTest, WhatEndedIsForgottenAndWhatIsUnderWayIsNot) {
  LinkCalendar calendar(two_hosts(100));
  calendar.carry(0, 2, 0, 100);
  calendar.carry(0, 2, 0, 400);
  calendar.forget_before(2);
  EXPECT_EQ(calendar.carry(1, 3, 2, 100), 6);
  EXPECT_EQ(calendar.carry(1, 2, 20, 100), 21);
}

}  // namespace
}  // namespace millrace
