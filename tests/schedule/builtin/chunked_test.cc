// 1f1b-interleaved and breadth-first.
#include <gtest/gtest.h>

#include "millrace/schedule/registry.h"
#include "tests/schedule/slots.h"

namespace millrace {
namespace {

Schedule made(const char* name, int ranks, int microbatches, int chunks) {
  return make_schedule(name,
                       {.num_ranks = ranks, .num_microbatches = microbatches, .chunks = chunks});
}

double idle_of_rank(const Schedule& schedule) {
  return testing::window_of(testing::run_in_slots(schedule.period, 1, 2)).idle / schedule.num_ranks;
}

TEST(Interleaved, GoldenOrders) {
  const Schedule four = made("1f1b-interleaved", 2, 4, 2);
  EXPECT_EQ(to_string(four.period[0]),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(to_string(four.period[1]),
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
  EXPECT_EQ(four.stage_ranks, (std::vector<std::vector<int>>{{0}, {1}, {0}, {1}}));
  // With one stage a rank it runs more forwards ahead than 1f1b, at the same idle time.
  EXPECT_EQ(to_string(made("1f1b-interleaved", 3, 4, 1).period[1]),
            "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3");
}

// The paper's share for whole groups, written as it is there: (P-1)/(VM) of the busy time.
TEST(Interleaved, OverheadIsThePapersForMultiplesOfTheRanks) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 32; m += p) {
      for (int v = 1; v <= 4; ++v) {
        const double busy = 3.0 * v * m;
        EXPECT_EQ(idle_of_rank(made("1f1b-interleaved", p, m, v)) * v * m / busy, p - 1);
      }
    }
  }
}

// And for any other number, where a short last group would deadlock or wait; below P the general
// form.
TEST(Interleaved, AnyNumberOfMicrobatchesKeepsIt) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      for (int v = 1; v <= 4; ++v) {
        const int waits = m >= p ? p - 1 : (v - 1) * (p - m) + p - 1;
        EXPECT_EQ(idle_of_rank(made("1f1b-interleaved", p, m, v)), 3 * waits)
            << "P=" << p << " M=" << m << " V=" << v;
      }
    }
  }
  EXPECT_EQ(idle_of_rank(made("1f1b-interleaved", 4, 5, 2)), 9);
  EXPECT_EQ(idle_of_rank(made("1f1b-interleaved", 4, 5, 3)), 9);
}

TEST(BreadthFirst, GoldenOrders) {
  const Schedule schedule = made("breadth-first", 2, 3, 2);
  EXPECT_EQ(to_string(schedule.period[0]), "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2");
  EXPECT_EQ(to_string(schedule.period[1]), "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2");
  EXPECT_EQ(made("breadth-first", 3, 5, 1).period, make_schedule("gpipe", {3, 5}).period);
}

// Overhead (P-1)/(MV) also where M is no multiple of P.
TEST(BreadthFirst, OverheadIsThePapersFromAsManyMicrobatchesAsRanks) {
  for (const auto& [p, m, v] : {std::tuple{4, 4, 2}, {4, 8, 2}, {4, 4, 4}, {8, 8, 2}, {4, 5, 2}}) {
    EXPECT_EQ(idle_of_rank(made("breadth-first", p, m, v)) / (3.0 * m * v), (p - 1.0) / (m * v));
  }
  // Fewer wait at every loop.
  EXPECT_EQ(idle_of_rank(made("breadth-first", 4, 2, 3)), 3 * (2 * 2 + 3));
}

TEST(BreadthFirst, EachStageRunsInOneBurstAPass) {
  const Schedule schedule = made("breadth-first", 4, 6, 3);
  for (const ActionList& list : schedule.period) {
    int bursts = 1;
    for (std::size_t i = 1; i < list.size(); ++i) {
      bursts += list[i].kind != list[i - 1].kind || list[i].stage != list[i - 1].stage ? 1 : 0;
    }
    EXPECT_EQ(bursts, 2 * 3);
  }
}

}  // namespace
}  // namespace millrace
