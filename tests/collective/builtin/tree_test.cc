#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(TreeTest, RoundsAreTwiceTheRoundedUpLogarithm) {
  const std::vector<int> rounds = {0, 2, 4, 4, 6, 6, 6, 6, 8, 8, 8, 8, 8, 8, 8, 8};
  for (int count = 1; count <= 16; ++count) {
    EXPECT_EQ(steps_of("tree", {count, 10, {}, {}}), rounds[count - 1]) << count;
  }
}

TEST(TreeTest, EveryMessageIsTheWholeBuffer) {
  EXPECT_THAT(sent_by("tree", {8, 10, {}, {}}),
              testing::ElementsAre(30, 10, 20, 10, 30, 10, 20, 10));
}

TEST(TreeTest, FusedAndUnfusedAgreeBitForBit) {
  for (const int count : tested_members()) {
    EXPECT_TRUE(fused_equals_unfused("tree", {count, 0, {}, {}})) << count;
  }
}

}  // namespace
}  // namespace millrace
