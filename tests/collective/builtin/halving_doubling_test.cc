#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(HalvingDoublingTest, StepsAreTwiceTheLogarithmAndTwoToFold) {
  const std::vector<int> members = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
  const std::vector<int> steps = {0, 2, 4, 4, 6, 6, 6, 6, 8, 8, 8};
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(steps_of("halving-doubling", {members[i], 64, {}, {}}), steps[i]) << members[i];
  }
}

TEST(HalvingDoublingTest, PowersOfTwoSendAsARingDoes) {
  EXPECT_THAT(sent_by("halving-doubling", {8, 800, {}, {}}), testing::Each(1400));
}

TEST(HalvingDoublingTest, OthersFoldIntoTheirNeighbour) {
  // p = 4: the four that stay send 2 * 3/4 of 400, two of them the result as well.
  EXPECT_THAT(sent_by("halving-doubling", {6, 400, {}, {}}),
              testing::ElementsAre(1000, 400, 1000, 400, 600, 600));
}

TEST(HalvingDoublingTest, FusedAndUnfusedAgreeBitForBit) {
  for (const int count : tested_members()) {
    EXPECT_TRUE(fused_equals_unfused("halving-doubling", {count, 0, {}, {}})) << count;
  }
}

// The tree that pairs neighbours first, whoever adds.
TEST(HalvingDoublingTest, SumsNeighboursFirst) {
  const auto data = random_floats(4, 100);
  const auto sum = sum_in_pieces("halving-doubling", {4, 0, {}, {}}, data, {100});
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum[i], (data[0][i] + data[1][i]) + (data[2][i] + data[3][i]));
  }
}

// The bytes of distance d: N/2 between neighbours, less and less the further.
TEST(HalvingDoublingTest, NearPartnersExchangeMost) {
  const CollectiveProgram program = make_collective("halving-doubling", {8, 800, {}, {}});
  for (const CollectiveOp& op : program.members[5].ops) {
    if (op.kind == CollectiveOp::Kind::kSend) {
      EXPECT_EQ(op.place.size() * (op.peer ^ 5), 400);
    }
  }
}

}  // namespace
}  // namespace millrace
