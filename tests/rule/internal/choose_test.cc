#include "millrace/rule/internal/choose.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Highest, AscendingIndicesOfTheHighest) {
  const std::vector<double> scores = {3, 9, 1, 7, 5};
  EXPECT_THAT(highest(scores, 0), IsEmpty());
  EXPECT_THAT(highest(scores, 1), ElementsAre(1));
  EXPECT_THAT(highest(scores, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(highest(scores, 5), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THROW(highest(scores, 6), Error);
}

TEST(Highest, TiesGoToTheLowerIndex) {
  EXPECT_THAT(highest(std::vector<double>(5, 0), 2), ElementsAre(0, 1));
  EXPECT_THAT(highest(std::vector<double>{2, 1, 5, 2, 5, 2}, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(highest(std::vector<double>{2, 1, 5, 2, 5, 2}, 4), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(first_indices(3), ElementsAre(0, 1, 2));
}

TEST(Highest, NotANumberCountsAsInfinite) {
  EXPECT_THAT(highest(std::vector<double>{1, kNaN, 3, INFINITY, kNaN}, 2), ElementsAre(1, 3));
}

TEST(Highest, IsTheFrontOfAStableSort) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RandomKey key(seed);
    std::vector<double> scores(100);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = static_cast<double>(key.below(i, 10));  // many ties
    }
    std::vector<uint32_t> order = first_indices(100);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    order.resize(37);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(highest(scores, 37), order) << seed;
  }
}

TEST(DrawOthers, AvoidsWhatIsTakenAndTakesNothingTwice) {
  const std::vector<uint32_t> taken = {0, 3, 4, 9};
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<uint32_t> drawn = draw_others(RandomKey(seed), 10, taken, 4);
    ASSERT_EQ(drawn.size(), 4U);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      EXPECT_LT(drawn[i], 10U);
      EXPECT_TRUE(i == 0 || drawn[i - 1] < drawn[i]);
      EXPECT_FALSE(std::binary_search(taken.begin(), taken.end(), drawn[i]));
    }
    EXPECT_EQ(draw_others(RandomKey(seed), 10, taken, 4), drawn);
  }
  EXPECT_THAT(draw_others(RandomKey(1), 10, taken, 6), ElementsAre(1, 2, 5, 6, 7, 8));
  EXPECT_THAT(draw_others(RandomKey(1), 10, taken, 0), IsEmpty());
  EXPECT_THROW(draw_others(RandomKey(1), 10, taken, 7), Error);
}

// Each of the 10 sets of 2 of 5 others is equally likely: chi-square with 9 degrees of freedom,
// whose 99.9% point is 27.9.
TEST(DrawOthers, AllSetsAreEquallyLikely) {
  const std::vector<uint32_t> taken = {2, 5};
  constexpr int kDraws = 20000;
  std::map<std::vector<uint32_t>, int> seen;
  for (int round = 0; round < kDraws; ++round) {
    const RandomKey key = RandomKey(11).with(static_cast<uint64_t>(round));
    ++seen[draw_others(key, 7, taken, 2)];
  }
  ASSERT_EQ(seen.size(), 10U);
  double chi_square = 0;
  for (const auto& [set, times] : seen) {
    chi_square += std::pow(times - kDraws / 10.0, 2) / (kDraws / 10.0);
  }
  EXPECT_LT(chi_square, 27.9);
}

}  // namespace
}  // namespace millrace::internal
