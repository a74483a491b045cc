#include <gmock/gmock.h>

#include "tests/base/caught.h"
#include "tests/collective/codecs.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Codec> accept(int exponent_bits, int mantissa_bits) {
  return find_codec("accept").make({exponent_bits, mantissa_bits});
}

TEST(AcceptTest, ChosenWidthsAndOneByte) {
  EXPECT_EQ(accept(5, 2)->wire_bytes(1000), 1001);
  EXPECT_EQ(accept(8, 7)->wire_bytes(1000), 2001);
  EXPECT_EQ(accept(6, 5)->wire_bytes(3), 1 + 5);  // 36 bits
  EXPECT_EQ(accept(3, 2)->wire_bytes(1), 2);
  EXPECT_EQ(accept(3, 2)->wire_bytes(0), 0);
}

TEST(AcceptTest, KeepsTheUpperMantissaBits) {
  // Two bits: quarters of the leading power of two, towards zero.
  EXPECT_THAT(passed(*accept(5, 2), {1.75F, 1.74F, -3.9F, 0.3F}),
              ElementsAre(1.75F, 1.5F, -3.5F, 0.25F));
}

// Three exponent bits: six exponents from the largest down, of which 2^-5 is the lowest here.
TEST(AcceptTest, WhatLiesFarBelowTheLargestBecomesZero) {
  EXPECT_THAT(passed(*accept(3, 2), {1.0F, 0x1p-5F, 0x1.cp-6F, -0x1p-20F}),
              ElementsAre(1.0F, 0x1p-5F, 0, 0));
}

TEST(AcceptTest, WithAllExponentsItIsTruncation) {
  const std::vector<float> block = {3e38F, 0x1p-126F, 1.2345678F, -1e-30F, 65504};
  EXPECT_EQ(passed(*accept(8, 7), block), passed(*find_codec("truncate").make({}), block));
}

TEST(AcceptTest, PacksFromTheLowestBit) {
  std::vector<std::byte> bytes(1 + 2);
  // Codes of six bits: 1.25 is (0, 6, 1), -0.5 is (1, 5, 0): 011001 and 110100.
  accept(3, 2)->encode(std::vector<float>{1.25F, -0.5F}, bytes);
  EXPECT_THAT(bytes, ElementsAre(std::byte{127}, std::byte{0x19}, std::byte{0x0d}));
}

TEST(AcceptTest, OtherWidthsAreRefused) {
  for (const auto& [e, k] : {std::pair(1, 2), {9, 2}, {5, 0}, {8, 8}, {2, 14}}) {
    const Error error = caught([e = e, k = k] { accept(e, k); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("found {} and {}", e, k)));
  }
}

}  // namespace
}  // namespace millrace
