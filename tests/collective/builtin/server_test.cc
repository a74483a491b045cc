#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(ServerTest, TheServersLinkCarriesEverything) {
  EXPECT_THAT(sent_by("server", {4, 10, {}, {}}), testing::ElementsAre(30, 10, 10, 10));
}

// Steps of N elements: a tie with the tree at 2 and 3 members, more from 4.
TEST(ServerTest, StepsGrowWithTheMembers) {
  for (const int count : tested_members()) {
    const int steps = steps_of("server", {count, 10, {}, {}});
    EXPECT_EQ(steps, 2 * (count - 1));
    if (count > 1) {
      EXPECT_EQ(steps > steps_of("tree", {count, 10, {}, {}}), count >= 4) << count;
    }
  }
}

TEST(ServerTest, SumsInMemberOrderFusedOrNot) {
  for (const int count : tested_members()) {
    const auto data = random_floats(count, 100);
    EXPECT_EQ(sum_in_pieces("server", {count, 0, {}, {}}, data, {100}), sum_in_member_order(data));
    EXPECT_TRUE(fused_equals_unfused("server", {count, 0, {}, {}})) << count;
  }
}

}  // namespace
}  // namespace millrace
