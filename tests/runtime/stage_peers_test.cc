#include "millrace/runtime/stage_peers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/comm/inproc/inproc.h"
#include "millrace/runtime/team.h"

namespace millrace {
namespace {

// Parts 0, 1, 2 on ranks 1, 3, 4, of unequal sizes.
TEST(StagePeers, GatherInOrderOfPartsAndSumOnAll) {
  const std::vector<int> ranks = {1, 3, 4};
  InprocWorld world(5, 20);
  std::vector<at::Tensor> expected;
  for (int64_t part = 0; part < 3; ++part) {
    expected.push_back(at::full({2, part + 1}, static_cast<double>(part), at::kDouble));
  }
  const at::Tensor whole = at::cat(expected, 1);
  run_ranks(
      ranks, [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const auto part =
            static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
        const auto communicator = world.communicator(rank);
        StagePeers peers(*communicator, ranks, part, 0);
        EXPECT_EQ(peers.part(), part);
        EXPECT_EQ(peers.parts(), 3);
        for (int round = 0; round < 3; ++round) {
          EXPECT_TRUE(at::equal(peers.gather(expected[static_cast<std::size_t>(part)], 1), whole));
        }
        EXPECT_EQ(peers.take_transfer().bytes, 3 * 2 * 2 * (part + 1) * 8)
            << "what is sent to two others";
        const at::Tensor sum =
            peers.sum(at::full({384}, static_cast<double>(part + 1), at::kDouble));
        EXPECT_TRUE(at::equal(sum, at::full({384}, 6.0, at::kDouble)));
        EXPECT_EQ(peers.take_transfer().bytes, 2 * 2 * 128 * 8);
        EXPECT_EQ(peers.take_transfer().bytes, 0);
      });
}

TEST(StagePeers, APartThatDoesNotComeIsNamedAtTheDeadline) {
  InprocWorld world(2, 0.2);
  const auto communicator = world.communicator(0);
  StagePeers peers(*communicator, {0, 1}, 0, 0);
  try {
    peers.gather(at::full({1}, 1.0), 0);
    FAIL() << "nobody came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  }
}

}  // namespace
}  // namespace millrace
