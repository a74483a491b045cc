#include "millrace/rule/internal/daso_intervals.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

// The periods in which a sequence of losses moved the intervals.
std::vector<int> moves(DasoSchedule& schedule, const std::vector<double>& losses) {
  std::vector<int> result;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const DasoIntervals before = schedule.now();
    schedule.observe(losses[i]);
    if (schedule.now() != before) {
      result.push_back(static_cast<int>(i));
    }
  }
  return result;
}

TEST(DasoSchedule, FollowsTheTrace) {
  DasoSchedule schedule({}, {.patience = 0});
  schedule.observe(1);
  EXPECT_EQ(schedule.now(), (DasoIntervals{4, 1, 1}));
  for (const DasoIntervals& next :
       {DasoIntervals{2, 1, 1}, DasoIntervals{1, 1, 1}, DasoIntervals{8, 2, 2},
        DasoIntervals{4, 1, 1}, DasoIntervals{2, 1, 1}, DasoIntervals{1, 1, 1},
        DasoIntervals{8, 2, 2}}) {
    schedule.observe(1);
    EXPECT_EQ(schedule.now(), next);
    EXPECT_LE(schedule.now().wait, schedule.now().skip);
  }
}

TEST(DasoSchedule, PatienceOfTwoMovesAtTheThird) {
  DasoSchedule flat({}, {});
  EXPECT_EQ(moves(flat, std::vector<double>(10, 2.5)), (std::vector<int>{3, 6, 9}));
  // Better by more than 5% of the best one begins to count anew; by less does not.
  DasoSchedule falling({}, {});
  EXPECT_EQ(moves(falling, {1, 1, 1, 0.94, 1, 1, 0.9, 1}), (std::vector<int>{6}));
}

TEST(DasoSchedule, BlockingStays) {
  DasoSchedule schedule({.skip = 0}, {.patience = 0});
  EXPECT_EQ(moves(schedule, std::vector<double>(10, 1)), std::vector<int>{});
}

TEST(DasoSchedule, ShortLongestSkipsStayValid) {
  DasoSchedule schedule({.skip = 1}, {.max_skip = 2, .patience = 0});
  schedule.observe(1);
  schedule.observe(1);
  EXPECT_EQ(schedule.now(), (DasoIntervals{2, 1, 1}));
}

}  // namespace
}  // namespace millrace
