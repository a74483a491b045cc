#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

TEST(HierarchicalTest, OnlyLeadersLeaveTheirHost) {
  const std::vector<int> host = {5, 5, 5, 1, 5, 1, 8};
  const CollectiveProgram program = make_collective("hierarchical", {7, 90, {}, host});
  for (int m = 0; m < 7; ++m) {
    for (const CollectiveOp& op : program.members[m].ops) {
      if (op.kind == CollectiveOp::Kind::kSend && host[op.peer] != host[m]) {
        EXPECT_THAT(m, testing::AnyOf(0, 3, 6));
        EXPECT_EQ(op.place.size(), 30);  // chunks of the ring of three leaders
      }
    }
  }
  // Trees of 4, 2 and 1; each leader 2 * 2/3 of 90 in the ring.
  EXPECT_EQ(sent_by("hierarchical", {7, 90, {}, host}),
            (std::vector<int64_t>{120 + 180, 90, 180, 120 + 90, 90, 90, 120}));
  EXPECT_EQ(steps_of("hierarchical", {7, 90, {}, host}), 2 * 2 + 2 * 2);
}

TEST(HierarchicalTest, OneHostIsATreeAndHostsOfOneARing) {
  CollectiveProgram tree = make_collective("tree", {5, 17, {}, {}});
  tree.algorithm = "hierarchical";
  EXPECT_EQ(make_collective("hierarchical", {5, 17, {}, {3, 3, 3, 3, 3}}), tree);
  CollectiveProgram ring = make_collective("ring", {5, 17, {}, {}});
  ring.algorithm = "hierarchical";
  EXPECT_EQ(make_collective("hierarchical", {5, 17, {}, {}}), ring);
}

}  // namespace
}  // namespace millrace
