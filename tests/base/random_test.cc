#include "millrace/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/base/caught.h"

namespace millrace {
namespace {

using Words = std::array<uint32_t, 4>;

// Published known answers of Random123 (kat_vectors): counter, key, result.
TEST(RandomTest, PhiloxGivesThePublishedAnswers) {
  EXPECT_EQ(internal::philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(internal::philox4x32_10({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(internal::philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                    {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  // A key's draws are that generator with the counter in its lower half.
  EXPECT_EQ(RandomKey(0).block(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(RandomKey(0).bits(0), 0xe169c58d6627e8d5u);
}

TEST(RandomTest, KeysDifferInEveryPart) {
  const RandomKey key(7);
  std::set<uint64_t> values = {key.value()};
  const std::vector<std::string> names = {"",     "a", "b", "ab", "ba", "conv1", "conv1.weight",
                                          "conv2"};
  for (const std::string& name : names) {
    values.insert(key.with(name).value());
    values.insert(key.with(name).with(name).value());
  }
  values.insert(key.with(std::string_view("a\0", 2)).value());
  for (uint64_t part = 0; part < 100; ++part) {
    values.insert(key.with(part).value());
  }
  EXPECT_EQ(values.size(), 1 + 2 * names.size() + 1 + 100);
  EXPECT_EQ(key.with("init").with(3).value(), RandomKey(7).with("init").with(3).value());
  EXPECT_NE(key.with("x").with("y").value(), key.with("y").with("x").value());
  EXPECT_NE(key.with(0).value(), key.bits(0)) << "a derived key is no draw";
}

TEST(RandomTest, UniformIsFlat) {
  const RandomKey key(1);
  constexpr int kDraws = 100000;
  std::array<int, 20> counts = {};
  for (int i = 0; i < kDraws; ++i) {
    const double u = key.uniform(static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++counts[static_cast<std::size_t>(u * 20)];
  }
  // Chi-square over 20 cells, seed fixed: 19 degrees of freedom, 43.8 is its 0.1% tail.
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = kDraws / 20.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8);
}

TEST(RandomTest, NormalHasTheRightMoments) {
  const RandomKey key(3);
  constexpr int kDraws = 200000;
  double sum = 0, square = 0, cube = 0, fourth = 0;
  int beyond_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = key.normal(static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    beyond_two += std::fabs(x) > 2 ? 1 : 0;
  }
  // Tolerances are four standard errors of each moment.
  EXPECT_NEAR(sum / kDraws, 0, 4 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(square / kDraws, 1, 4 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(cube / kDraws, 0, 4 * std::sqrt(15.0 / kDraws));
  EXPECT_NEAR(fourth / kDraws, 3, 4 * std::sqrt(96.0 / kDraws));
  EXPECT_NEAR(beyond_two / static_cast<double>(kDraws), 0.0455, 0.002);
}

TEST(RandomTest, NormalIsBoxMullerOfItsBlock) {
  // The portable logarithm and cosine against the C library's, relative to the radius.
  for (uint64_t i = 0; i < 20000; ++i) {
    const RandomKey key = RandomKey(11).with(i);
    const Words w = key.block(0);
    const uint64_t first = (static_cast<uint64_t>(w[1]) << 32) | w[0];
    const uint64_t second = (static_cast<uint64_t>(w[3]) << 32) | w[2];
    const double radius =
        std::sqrt(-2 * std::log(static_cast<double>((first >> 11) + 1) * 0x1p-53));
    const double turns = static_cast<double>(second >> 11) * 0x1p-53;
    ASSERT_NEAR(key.normal(0), radius * std::cos(2 * std::acos(-1.0) * turns), 4e-15 * (1 + radius))
        << "key " << i;
  }
}

TEST(RandomTest, BelowStaysBelowAndReachesAll) {
  const RandomKey key(5);
  for (const uint64_t bound : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{64}}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 2000; ++i) {
      const uint64_t x = key.below(i, bound);
      ASSERT_LT(x, bound);
      seen.insert(x);
    }
    EXPECT_EQ(seen.size(), bound);
  }
  EXPECT_LT(key.below(0, UINT64_MAX), UINT64_MAX);
  EXPECT_EQ(caught([&] { key.below(0, 0); }).code(), ErrorCode::kInternal);
}

TEST(RandomTest, PermutationsArePermutations) {
  for (int64_t size = 0; size < 40; ++size) {
    const RandomKey key = RandomKey(9).with(static_cast<uint64_t>(size));
    std::vector<int64_t> items = permutation(key, size);
    EXPECT_EQ(items, permutation(key, size));
    std::sort(items.begin(), items.end());
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(items[static_cast<std::size_t>(i)], i);
    }
  }
  // All 6 orders of 3 items come up about equally often.
  std::map<std::vector<int64_t>, int> counts;
  constexpr int kDraws = 6000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    ++counts[permutation(RandomKey(13).with(i), 3)];
  }
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) {
    EXPECT_NEAR(count, kDraws / 6, 4 * std::sqrt(kDraws / 6.0));
  }
}

}  // namespace
}  // namespace millrace
