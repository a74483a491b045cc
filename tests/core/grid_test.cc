#include "millrace/core/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/core_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(GridTest, OrderShowsARowARank) {
  const ActionLists lists = {parse_actions("0F0 0F1 0B0"), parse_actions("1F0 1B0-1"), {}};
  EXPECT_EQ(order_grid(lists),
            "rank 0 | 0F0 0F1   0B0\n"
            "rank 1 | 1F0 1B0-1\n"
            "rank 2 |\n");
}

TEST(GridTest, OrderMarksCells) {
  const ActionLists lists = {parse_actions("0F0 0F1 0B0"), parse_actions("1F0 1B0")};
  EXPECT_EQ(order_grid(lists, {{0, 2}, {1, 0}}),
            "rank 0 |  0F0   0F1  >0B0<\n"
            "rank 1 | >1F0<  1B0\n");
}

TEST(GridTest, OrderCutsAndMovesToTheMark) {
  ActionLists lists(11);
  for (int m = 0; m < 100; ++m) {
    lists[10].push_back(Action::of(ActionKind::kForward, 0, m));
  }
  const std::string start = order_grid(lists, {}, 3);
  EXPECT_THAT(start, HasSubstr("rank 10 | 0F0 0F1 0F2 ...\n"));
  EXPECT_THAT(start, HasSubstr("rank 0  |\n"));
  EXPECT_THAT(order_grid(lists, {{10, 50}}, 4),
              HasSubstr("rank 10 | ...  0F48   0F49  >0F50<  0F51  ...\n"));
}

Trace trace_of(const std::vector<std::vector<TraceEvent>>& ranks) {
  Trace trace;
  for (const auto& events : ranks) {
    RankTrace rank;
    rank.rank = static_cast<int>(trace.ranks.size());
    rank.events = events;
    trace.ranks.push_back(rank);
  }
  return trace;
}

TraceEvent event(const char* action, double start, double end) {
  return {parse_action(action), start, end, 0, 0};
}

TEST(GridTest, TimeShowsIdleAndLength) {
  // Backward takes twice a forward; messages are no compute.
  const Trace trace = trace_of({{event("0F0@1", 0, 1), event("0SEND_F0>1", 1, 1),
                                 event("0F1", 1, 2), event("0B0", 4, 6), event("0STEP", 6, 7)},
                                {event("1F0", 1, 2), event("1B0", 2, 4)}});
  EXPECT_EQ(time_grid(trace, 1),
            "rank 0 | 0F0 0F1 .   .   0B0 ---\n"
            "rank 1 | .   1F0 1B0 --- .   .\n");
}

TEST(GridTest, TimeForgivesRoundingAndSharedSlots) {
  const double third = 1.0 / 3;
  const Trace trace =
      trace_of({{event("0F0", 0, third), event("0F1", 3 * third - 2 * third, 2 * third),
                 event("0F2", 2 * third + 1e-12, 1.0 + 1e-12)},
                {event("1F0", 0, 0.1), event("1F1", 0.1, 0.3)}});
  EXPECT_EQ(time_grid(trace, third),
            "rank 0 | 0F0 0F1 0F2\n"
            "rank 1 | 1F0 .   .\n");
}

TEST(GridTest, TimeCutsRows) {
  const Trace trace = trace_of({{event("0F0", 0, 1), event("0B0", 1, 9)}, {event("1F0", 0, 2)}});
  EXPECT_EQ(time_grid(trace, 1, 3),
            "rank 0 | 0F0 0B0 --- ...\n"
            "rank 1 | 1F0 --- .\n");
  EXPECT_EQ(time_grid(trace_of({{}}), 1), "rank 0 |\n");
  // An action far away must not make a huge row.
  EXPECT_EQ(time_grid(trace_of({{event("0F0", 1e18, 2e18)}}), 1e-9, 3), "rank 0 | ...\n");
}

TEST(GridTest, RefusesNonsense) {
  EXPECT_EQ(caught([] { time_grid(Trace{}, 0); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(caught([] { order_grid({}, {}, 0); }).code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace millrace
