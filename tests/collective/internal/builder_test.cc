#include "millrace/collective/internal/builder.h"

#include <gmock/gmock.h>

namespace millrace::internal {
namespace {

using testing::ElementsAre;
using Kind = CollectiveOp::Kind;

TEST(ChunksTest, DifferByAtMostOneAndTheLargerComeFirst) {
  const Place whole{Space::kData, 5, 15};
  EXPECT_THAT(chunks_of(whole, 4),
              ElementsAre(Place{Space::kData, 5, 8}, Place{Space::kData, 8, 11},
                          Place{Space::kData, 11, 13}, Place{Space::kData, 13, 15}));
  EXPECT_THAT(without_empty(chunks_of({Space::kScratch, 0, 1}, 3)),
              ElementsAre(Place{Space::kScratch, 0, 1}));
}

TEST(BuilderTest, AStepSendsThenReceivesThenSums) {
  Builder builder("own", {2, 6, {}, {}});
  const Place place{Space::kData, 0, 6};
  for (const int from : {0, 1}) {
    const Place arrived = builder.send_to_scratch(from, 1 - from, place, 2);
    EXPECT_EQ(arrived, (Place{Space::kScratch, 2, 8}));
    builder.sum(1 - from, place, {place, arrived});
  }
  builder.end_step();
  const CollectiveProgram program = builder.finish();
  for (const MemberProgram& member : program.members) {
    ASSERT_EQ(member.ops.size(), 3U);
    EXPECT_EQ(member.ops[0].kind, Kind::kSend);
    EXPECT_EQ(member.ops[1].kind, Kind::kReceive);
    EXPECT_EQ(member.ops[2].kind, Kind::kSum);
    EXPECT_EQ(member.scratch_elements, 8);
  }
  EXPECT_EQ(program.num_steps, 1);
}

TEST(BuilderTest, HostsComeInTheOrderOfTheirFirstMember) {
  EXPECT_THAT(members_by_host({5, 1, {}, {7, 2, 7, 3, 2}}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
}

}  // namespace
}  // namespace millrace::internal
