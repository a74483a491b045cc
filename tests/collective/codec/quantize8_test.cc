#include <gmock/gmock.h>

#include <cmath>

#include "tests/collective/codecs.h"

namespace millrace {
namespace {

using testing::ElementsAre;

TEST(Quantize8Test, AByteAnElementAndEightForTheScale) {
  const auto codec = find_codec("quantize8").make({});
  EXPECT_EQ(codec->wire_bytes(0), 0);
  EXPECT_EQ(codec->wire_bytes(1), 9);
  EXPECT_EQ(codec->wire_bytes(1000), 1008);
}

TEST(Quantize8Test, MultiplesOfTheScaleAreExact) {
  const auto codec = find_codec("quantize8").make({});
  std::vector<float> block;
  for (int code = -127; code <= 127; ++code) {
    block.push_back(static_cast<float>(code) * 0x1.8p-9F);
  }
  EXPECT_EQ(passed(*codec, block), block);
  // The largest is 12.7, so a step is 0.1: to the nearest one.
  const std::vector<float> near = passed(*codec, {12.7F, 0.14F, -0.16F, 0.04F});
  EXPECT_NEAR(near[0], 12.7, 1e-3);
  EXPECT_NEAR(near[1], 0.1, 1e-4);
  EXPECT_NEAR(near[2], -0.2, 1e-4);
  EXPECT_EQ(near[3], 0);
}

TEST(Quantize8Test, SubnormalBlocksBecomeZeros) {
  const auto codec = find_codec("quantize8").make({});
  EXPECT_THAT(passed(*codec, {0x1p-130F, -0x1p-127F}), ElementsAre(0, 0));
  EXPECT_THAT(passed(*codec, {0x1p-120F, 0x1p-130F}), ElementsAre(testing::Gt(0), 0));
}

}  // namespace
}  // namespace millrace
