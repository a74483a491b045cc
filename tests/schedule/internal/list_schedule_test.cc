#include "millrace/schedule/internal/list_schedule.h"

#include <gtest/gtest.h>

#include <numeric>

#include "millrace/core/schedule.h"
#include "millrace/schedule/validate.h"
#include "tests/schedule/schedule_testing.h"
#include "tests/schedule/slots.h"

namespace millrace::internal {
namespace {

std::vector<int64_t> first(int64_t num) {
  std::vector<int64_t> microbatches(static_cast<std::size_t>(num));
  std::iota(microbatches.begin(), microbatches.end(), 0);
  return microbatches;
}

// One pipeline down, one stage a rank.
std::vector<Route> straight(int ranks, int64_t num) {
  Route route{{}, first(num)};
  for (int rank = 0; rank < ranks; ++rank) {
    route.ranks.push_back(rank);
  }
  return {route};
}

std::vector<std::vector<int>> holders_of(const std::vector<Route>& routes) {
  std::vector<std::vector<int>> holders(routes.front().ranks.size());
  for (const Route& route : routes) {
    for (std::size_t stage = 0; stage < holders.size(); ++stage) {
      holders[stage].push_back(route.ranks[stage]);
    }
  }
  return holders;
}

// Backwards first, under 1F1B's bound: 1F1B.
TEST(ListSchedule, BackwardsFirstWithinTheBoundIsOneForwardOneBackward) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int num = 1; num <= 16; ++num) {
      ListRule rule{.score = [](ActionKind kind, int, int64_t) {
        return kind == ActionKind::kBackward ? 1 : 0;
      }};
      for (int rank = 0; rank < ranks; ++rank) {
        rule.caps.push_back(ranks - rank);
      }
      const auto listed = list_schedule(ranks, straight(ranks, num), rule);
      ASSERT_TRUE(listed);
      EXPECT_EQ(listed->lists, make_schedule("1f1b", {ranks, num}).period);
      EXPECT_EQ(listed->window, 3 * (num + ranks - 1));
    }
  }
}

TEST(ListSchedule, ForwardsFirstIsGpipe) {
  const ListRule rule{
      .score = [](ActionKind kind, int, int64_t) { return kind == ActionKind::kForward ? 1 : 0; }};
  const auto listed = list_schedule(3, straight(3, 4), rule);
  ASSERT_TRUE(listed);
  EXPECT_EQ(listed->lists, make_schedule("gpipe", {3, 4}).period);
}

TEST(ListSchedule, WeightGradientsFillTheGaps) {
  // W scores least: rank 0 has time for one while the second input gradient is on its way.
  const ListRule rule{
      .score =
          [](ActionKind kind, int, int64_t) {
            return kind == ActionKind::kInputGradient ? 2 : kind == ActionKind::kForward ? 1 : 0;
          },
      .split = true,
      .backward = 1};
  const auto listed = list_schedule(2, straight(2, 2), rule);
  ASSERT_TRUE(listed);
  EXPECT_EQ(to_string(listed->lists[0]), "0F0 0F1 0I0 0W0 0I1 0W1");
  EXPECT_EQ(to_string(listed->lists[1]), "1F0 1I0 1F1 1I1 1W0 1W1");
  EXPECT_EQ(listed->window, 7);
  EXPECT_EQ(find_faults(listed->lists, {{0}, {1}}, 2).size(), 0U);
}

TEST(ListSchedule, MicrobatchesRunInTheOrderOfTheirRoute) {
  std::vector<Route> routes = straight(2, 3);
  routes[0].microbatches = {2, 0, 1};
  const ListRule rule{
      .score = [](ActionKind kind, int, int64_t) { return kind == ActionKind::kForward ? 1 : 0; }};
  const auto listed = list_schedule(2, routes, rule);
  ASSERT_TRUE(listed);
  EXPECT_EQ(to_string(listed->lists[1]), "1F2 1F0 1F1 1B2 1B0 1B1");
}

// Equal scores throughout, three stages on one rank, two routes.
TEST(ListSchedule, TiesGoToTheSmallerStageThenToTheBackwardThenToTheEarlierRoute) {
  const std::vector<Route> routes = {{{0, 0}, {0}}, {{0, 0}, {1}}};
  const ListRule rule{.score = [](ActionKind, int, int64_t) { return 0; }};
  const auto listed = list_schedule(1, routes, rule);
  ASSERT_TRUE(listed);
  EXPECT_EQ(to_string(listed->lists[0]), "0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1");
}

TEST(ListSchedule, CapsThatLeaveEverybodyWaitingGiveNothing) {
  // Both routes fill both ranks with forwards that wait for each other's second stage.
  const std::vector<Route> routes = {{{0, 1}, {0, 1}}, {{1, 0}, {2, 3}}};
  ListRule rule{.score = [](ActionKind, int stage, int64_t) { return -stage; }, .caps = {2, 2}};
  EXPECT_FALSE(list_schedule(2, routes, rule));
  rule.caps = {3, 3};
  EXPECT_TRUE(list_schedule(2, routes, rule));
  rule.caps.clear();
  EXPECT_TRUE(list_schedule(2, routes, rule));
}

// Random routes, scores, times and bounds: what comes out is valid, keeps its bounds, and the
// window is that of a replay.
TEST(ListSchedule, AnyRuleGivesAValidOrderWithinItsBounds) {
  testing::Draws draws(7);
  int num_given = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int ranks = static_cast<int>(1 + draws.below(5));
    const int stages = static_cast<int>(1 + draws.below(7));
    std::vector<Route> routes(static_cast<std::size_t>(1 + draws.below(2)));
    int64_t num = 0;
    for (Route& route : routes) {
      for (int stage = 0; stage < stages; ++stage) {
        route.ranks.push_back(static_cast<int>(draws.below(ranks)));
      }
      for (int64_t m = draws.below(5); m >= 0; --m) {
        route.microbatches.push_back(num++);
      }
    }
    std::vector<double> weights;
    for (int i = 0; i < 6; ++i) {
      weights.push_back(static_cast<double>(draws.below(9)) - 4);
    }
    ListRule rule{.score =
                      [&](ActionKind kind, int stage, int64_t index) {
                        const std::size_t at = kind == ActionKind::kForward ? 0 : 3;
                        return weights[at] + weights[at + 1] * stage +
                               weights[at + 2] * static_cast<double>(index);
                      },
                  .split = draws.below(2) == 1,
                  .forward = 1 + draws.below(3),
                  .backward = 1 + draws.below(3)};
    rule.weight = rule.backward;
    if (draws.below(2) == 1) {
      rule.caps.assign(static_cast<std::size_t>(ranks), static_cast<int>(1 + draws.below(8)));
    }
    const auto listed = list_schedule(ranks, routes, rule);
    EXPECT_TRUE(listed || !rule.caps.empty());
    if (!listed) {
      continue;
    }
    ++num_given;
    const auto findings = find_faults(listed->lists, holders_of(routes), num);
    ASSERT_TRUE(findings.empty()) << findings.front().text;
    const auto backward = static_cast<double>(rule.backward * (rule.split ? 2 : 1));
    const testing::Times times =
        testing::run_in_slots(listed->lists, static_cast<double>(rule.forward), backward);
    ASSERT_EQ(testing::window_of(times).slots, static_cast<double>(listed->window));
    for (std::size_t rank = 0; rank < rule.caps.size(); ++rank) {
      ASSERT_LE(testing::peak_stash(listed->lists[rank]), rule.caps[rank]);
    }
  }
  EXPECT_GT(num_given, 200);
}

}  // namespace
}  // namespace millrace::internal
