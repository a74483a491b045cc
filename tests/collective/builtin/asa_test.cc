#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(AsaTest, MemberRSendsOthersChunksAndItsOwnToAll) {
  for (const int count : tested_members()) {
    for (const int64_t elements : tested_sizes()) {
      const std::vector<int64_t> c = chunk_sizes(count, elements);
      const std::vector<int64_t> sent = sent_by("asa", {count, elements, {}, {}});
      for (int r = 0; r < count && count > 1; ++r) {
        EXPECT_EQ(sent[r], elements + (count - 2) * c[r]);
      }
    }
  }
  // What does not divide is not padded: 20 elements over 3 members, not 24.
  EXPECT_THAT(sent_by("asa", {3, 10, {}, {}}), testing::ElementsAre(14, 13, 13));
}

TEST(AsaTest, StepsAreThoseOfARing) {
  for (const int count : tested_members()) {
    EXPECT_EQ(steps_of("asa", {count, 64, {}, {}}), 2 * (count - 1));
  }
}

TEST(AsaTest, SumsInMemberOrderFusedOrNot) {
  for (const int count : tested_members()) {
    const auto data = random_floats(count, 100);
    EXPECT_EQ(sum_in_pieces("asa", {count, 0, {}, {}}, data, {100}), sum_in_member_order(data));
    EXPECT_TRUE(fused_equals_unfused("asa", {count, 0, {}, {}})) << count;
  }
}

}  // namespace
}  // namespace millrace
