// Schedules with a backward in two halves: zb-h1, zb-v and those of 2BP. Slots of F = I = W = 1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "millrace/base/error.h"
#include "millrace/schedule/registry.h"
#include "tests/schedule/slots.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::inner_idle;
using testing::Times;

Times in_slots(const Schedule& schedule) { return testing::run_in_slots(schedule.period, 1, 2); }

double idle_of_rank(const Schedule& schedule) {
  return testing::window_of(in_slots(schedule)).idle / schedule.num_ranks;
}

double share_of(const Schedule& schedule) {
  const testing::Window window = testing::window_of(in_slots(schedule));
  return window.idle / (schedule.num_ranks * window.slots);
}

TEST(ZbH1, GoldenOrder) {
  const Schedule schedule = make_schedule("zb-h1", {3, 4});
  EXPECT_EQ(to_string(schedule.period[0]), "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
  EXPECT_EQ(to_string(schedule.period[1]), "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3");
  EXPECT_EQ(to_string(schedule.period[2]), "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
}

// The idle time, not its share, is a third of 1F1B's, and exactly from M = P on; so is what a rank
// waits between its own first and last action.
TEST(ZbH1, IdlesAThirdOfOneFOneBExactlyFromAsManyMicrobatchesAsRanks) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      const Schedule zero_bubble = make_schedule("zb-h1", {p, m});
      const Schedule whole = make_schedule("1f1b", {p, m});
      EXPECT_EQ(3 * idle_of_rank(zero_bubble) == idle_of_rank(whole), m >= p);
      EXPECT_EQ(idle_of_rank(zero_bubble), std::max(p - 1, 2 * p - 1 - m));
      if (m >= p) {
        const Times times = in_slots(zero_bubble);
        const Times whole_times = in_slots(whole);
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(inner_idle(times[r]), p - 1 - r);
          EXPECT_EQ(inner_idle(whole_times[r]), 3 * (p - 1 - r));
        }
        EXPECT_DOUBLE_EQ(share_of(zero_bubble), (p - 1.0) / (3 * m + p - 1));
      }
    }
  }
}

// To W no rank holds more than 1F1B's worst; to I each as many as there.
TEST(ZbH1, HoldsNoMoreThanOneFOneBsWorstRank) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      const Schedule schedule = make_schedule("zb-h1", {p, m});
      for (int r = 0; r < p; ++r) {
        const ActionList& list = schedule.period[r];
        EXPECT_EQ(testing::peak_stash(list, ActionKind::kWeightGradient), std::min(m, p));
        EXPECT_EQ(testing::peak_stash(list, ActionKind::kInputGradient), std::min(m, p - r));
      }
    }
  }
}

TEST(ZbV, GoldenOrder) {
  const Schedule schedule = make_schedule("zb-v", {2, 4});
  EXPECT_EQ(schedule.stage_ranks, (std::vector<std::vector<int>>{{0}, {1}, {1}, {0}}));
  EXPECT_EQ(to_string(schedule.period[0]),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 "
            "0I2 0W2 0I3 0W3");
  EXPECT_EQ(to_string(schedule.period[1]),
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 "
            "1I3 1W2 2W3 1W3");
}

TEST(ZbV, NoRankWaitsBetweenItsFirstAndLastActionFromTwiceTheRanks) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      const Schedule schedule = make_schedule("zb-v", {p, m});
      const Times times = in_slots(schedule);
      EXPECT_EQ(idle_of_rank(schedule), std::max(p - 1, 4 * p - 2 - 2 * m));
      if (m >= 2 * p - 1) {
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(inner_idle(times[r]), 0);
          EXPECT_EQ(times[r].front().start, r);
        }
        EXPECT_DOUBLE_EQ(share_of(schedule), (p - 1.0) / (6 * m + p - 1));
      }
    }
  }
}

TEST(ZbV, OtherChunksAreRefused) {
  try {
    make_schedule("zb-v", {.num_ranks = 2, .num_microbatches = 4, .chunks = 3});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("2 stages a rank"));
    EXPECT_THAT(error.message(), HasSubstr("set chunks = 2"));
  }
}

// The paper's table, its idle shares before and after the split, in its own form.
TEST(TwoBp, TableOfThePaper) {
  for (int n = 2; n <= 8; ++n) {
    const double d = n;
    EXPECT_DOUBLE_EQ(share_of(make_schedule("naive", {n, 1})), (d - 1) / d);
    EXPECT_DOUBLE_EQ(share_of(make_schedule("2bp-naive", {n, 1})), 2 * (d - 1) / (2 * d + 1));
    EXPECT_DOUBLE_EQ(share_of(make_schedule("gpipe", {n, n})), (d - 1) / (2 * d - 1));
    EXPECT_DOUBLE_EQ(share_of(make_schedule("2bp-gpipe", {n, n})),
                     2 * (d - 1) / (2 * (d - 1) + 3 * d));
    EXPECT_DOUBLE_EQ(share_of(make_schedule("2bp-1f1b-1", {n, n})), (d - 1) / (4 * d - 1));
    EXPECT_DOUBLE_EQ(share_of(make_schedule("1f1b", {n, 2 * n})), (d - 1) / (3 * d - 1));
    EXPECT_DOUBLE_EQ(share_of(make_schedule("2bp-1f1b-2", {n, 2 * n})), (d - 1) / (7 * d - 1));
  }
}

// The gains at four ranks: 1.33, 1.17, 1.40 and 1.22 times the throughput.
TEST(TwoBp, GainsAtFourRanks) {
  const auto gain = [](const char* whole, const char* halves, int m) {
    const auto slots = [m](const char* name) {
      return testing::window_of(in_slots(make_schedule(name, {4, m}))).slots;
    };
    return slots(whole) / slots(halves);
  };
  EXPECT_DOUBLE_EQ(gain("naive", "2bp-naive", 1), 12.0 / 9);
  EXPECT_DOUBLE_EQ(gain("gpipe", "2bp-gpipe", 4), 21.0 / 18);
  EXPECT_DOUBLE_EQ(gain("1f1b", "2bp-1f1b-1", 4), 21.0 / 15);
  EXPECT_DOUBLE_EQ(gain("1f1b", "2bp-1f1b-2", 8), 33.0 / 27);
}

TEST(TwoBp, GoldenOrders) {
  EXPECT_EQ(to_string(make_schedule("2bp-naive", {2, 2}).period[1]), "1F0 1I0 1W0 1F1 1I1 1W1");
  EXPECT_EQ(to_string(make_schedule("2bp-gpipe", {2, 3}).period[0]),
            "0F0 0F1 0F2 0I0 0I1 0I2 0W0-2");
  const Schedule four = make_schedule("2bp-1f1b-2", {2, 4});
  EXPECT_EQ(to_string(four.period[0]), "0F0 0F1 0I0 0F2 0I1 0F3 0I2 0W0 0I3 0W1 0W2 0W3");
  EXPECT_EQ(to_string(four.period[1]), "1F0 1I0 1F1 1I1 1F2 1I2 1F3 1I3 1W0 1W1 1W2 1W3");
  EXPECT_EQ(make_schedule("2bp-1f1b-1", {3, 3}).period.size(), 3U);
}

// All weight gradients at the end miss the table, which is why they fill the gaps.
TEST(TwoBp, WeightGradientsAtTheEndWouldIdleTwiceAsLong) {
  for (int n = 2; n <= 8; ++n) {
    Schedule schedule = make_schedule("2bp-1f1b-1", {n, n});
    for (ActionList& list : schedule.period) {
      std::stable_partition(list.begin(), list.end(), [](const Action& action) {
        return action.kind != ActionKind::kWeightGradient;
      });
    }
    EXPECT_EQ(idle_of_rank(schedule), 2 * (n - 1));
  }
}

TEST(TwoBp, OneFOneBVariantsTakeThePapersMicrobatchesOnly) {
  for (const auto& [name, microbatches] : {std::pair{"2bp-1f1b-1", 8}, {"2bp-1f1b-2", 4}}) {
    try {
      make_schedule(name, {4, microbatches});
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("told apart only by their microbatches"));
      EXPECT_THAT(error.message(),
                  HasSubstr("set microbatches = " + std::to_string(12 - microbatches)));
    }
  }
}

}  // namespace
}  // namespace millrace
