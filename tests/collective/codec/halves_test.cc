// The codecs of 16 bits against conversions done by arithmetic, over all their codes and the
// floats around each.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>

#include "tests/collective/codecs.h"

namespace millrace {
namespace {

// The nearest multiple of the format's unit at x, ties to even: `digits` significant bits, the
// smallest normal number 2^least.
float rounded(float x, int digits, int least) {
  const int exponent = std::max(std::ilogb(x), least);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  return static_cast<float>(std::nearbyint(static_cast<double>(x) / unit) * unit);
}

// Every float next to a number of the format and half-way between two of them.
std::vector<float> interesting(int digits, int least, int most) {
  std::vector<float> values;
  for (int exponent = least - digits; exponent <= most; ++exponent) {
    for (int i = 0; i<(1 << digits); i += digits> 8 ? 7 : 1) {
      const auto middle =
          static_cast<float>(std::ldexp(1.0 + i * std::ldexp(1.0, -digits), exponent));
      if (!std::isinf(middle) && middle > 0) {
        values.insert(values.end(), {middle, std::nextafter(middle, 0.0F), -middle,
                                     -std::nextafter(middle, 2 * middle)});
      }
    }
  }
  return values;
}

TEST(Fp16Test, RoundsToTheNearestHalf) {
  const auto codec = find_codec("fp16").make({});
  const std::vector<float> values = interesting(11, -14, 14);
  const std::vector<float> decoded = passed(*codec, values);
  ASSERT_GT(values.size(), 10000U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(decoded[i], rounded(values[i], 11, -14)) << values[i];
  }
}

TEST(Fp16Test, OverflowsToInfinity) {
  const auto codec = find_codec("fp16").make({});
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(passed(*codec, {65504, 65519.996F, 65520, -1e30F, 0x1p-25F, 0x1.000002p-25F}),
              testing::ElementsAre(65504, 65504, infinity, -infinity, 0, 0x1p-24F));
}

TEST(Fp16Test, KeepsEveryHalf) {
  const auto codec = find_codec("fp16").make({});
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    float value = 0;
    codec->decode(std::as_bytes(std::span(&half, 1)), {&value, 1});
    uint16_t again = 0;
    codec->encode({&value, 1}, std::as_writable_bytes(std::span(&again, 1)));
    if (std::isnan(value)) {
      ASSERT_GT(code & 0x7fffU, 0x7c00U);
      ASSERT_EQ(again & 0xfe00U, (code & 0x8000U) | 0x7e00U);
    } else {
      ASSERT_EQ(again, half);
    }
  }
}

TEST(Bf16Test, RoundsToTheNearest) {
  const auto codec = find_codec("bf16").make({});
  const std::vector<float> values = interesting(8, -126, 126);
  const std::vector<float> decoded = passed(*codec, values);
  ASSERT_GT(values.size(), 10000U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(decoded[i], rounded(values[i], 8, -126)) << values[i];
  }
  EXPECT_EQ(passed(*codec, {std::numeric_limits<float>::max()})[0],
            std::numeric_limits<float>::infinity());
}

TEST(TruncateTest, GoesTowardsZeroByHalfTheBytes) {
  const auto codec = find_codec("truncate").make({});
  EXPECT_EQ(codec->wire_bytes(999), 1998);
  EXPECT_THAT(passed(*codec, {0x1.01fffep0F, -0x1.01fffep0F, 0x1.02p0F, 3.0F}),
              testing::ElementsAre(1.0F, -1.0F, 0x1.02p0F, 3.0F));
}

}  // namespace
}  // namespace millrace
