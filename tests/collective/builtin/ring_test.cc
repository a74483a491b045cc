#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(RingTest, MemberRSendsAllButTwoChunksTwice) {
  EXPECT_THAT(sent_by("ring", {4, 10, {}, {}}), testing::ElementsAre(15, 16, 15, 14));
  for (const int count : tested_members()) {
    for (const int64_t elements : tested_sizes()) {
      const std::vector<int64_t> c = chunk_sizes(count, elements);
      const std::vector<int64_t> sent = sent_by("ring", {count, elements, {}, {}});
      for (int r = 0; r < count && count > 1; ++r) {
        EXPECT_EQ(sent[r], 2 * elements - c[(r + 1) % count] - c[(r + 2) % count]);
      }
    }
  }
}

TEST(RingTest, GoesTwiceAround) {
  for (const int count : tested_members()) {
    EXPECT_EQ(steps_of("ring", {count, 64, {}, {}}), 2 * (count - 1));
  }
}

// An element's order of summation depends on its chunk.
TEST(RingTest, FusedAndUnfusedDifferInBitsFromThreeMembers) {
  EXPECT_TRUE(fused_equals_unfused("ring", {2, 0, {}, {}}));
  for (const int count : {3, 4, 8}) {
    EXPECT_FALSE(fused_equals_unfused("ring", {count, 0, {}, {}})) << count;
  }
  const auto data = random_floats(4, 100);
  EXPECT_NE(sum_in_pieces("ring", {4, 0, {}, {}}, data, {100}), sum_in_member_order(data));
}

}  // namespace
}  // namespace millrace
