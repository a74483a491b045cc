#include <gmock/gmock.h>

#include "tests/collective/configs.h"
#include "tests/collective/sent.h"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;

// Elements that each member sends in steps [begin, end), there and back: a dimension's share.
std::vector<int64_t> sent_along(const CollectiveProgram& program, int begin, int end) {
  std::vector<int64_t> sent;
  for (const MemberProgram& member : program.members) {
    sent.push_back(0);
    for (const CollectiveOp& op : member.ops) {
      const int step = std::min(op.step, program.num_steps - 1 - op.step);
      const bool inside = step >= begin && step < end;
      sent.back() += op.kind == CollectiveOp::Kind::kSend && inside ? op.place.size() : 0;
    }
  }
  return sent;
}

TEST(GridTest, StepsAndElementsByDimension) {
  const int64_t n = 960;
  for (const std::vector<int>& grid :
       {std::vector<int>{8}, {4, 2}, {2, 4}, {2, 2, 2}, {3, 4}, {2, 2, 3}, {4, 1, 4}}) {
    int count = 1;
    for (const int size : grid) {
      count *= size;
    }
    const CollectiveProgram program = make_collective("grid", {count, n, grid, {}});
    int begin = 0;
    int product = 1;
    for (const int size : grid) {
      product *= size;
      EXPECT_THAT(sent_along(program, begin, begin + size - 1), Each(2 * n * (size - 1) / product));
      begin += size - 1;
    }
    EXPECT_EQ(program.num_steps, 2 * begin);
    EXPECT_EQ(steps_of("grid", {count, n, grid, {}}), 2 * begin);
  }
}

TEST(GridTest, OneDimensionIsARing) {
  CollectiveProgram ring = make_collective("ring", {5, 17, {}, {}});
  ring.algorithm = "grid";
  EXPECT_EQ(make_collective("grid", {5, 17, {5}, {}}), ring);
  EXPECT_EQ(make_collective("grid", {5, 17, {}, {}}), ring);  // no divisor: the default too
}

std::string default_grid(const CollectiveConfig& config) {
  const CollectiveProgram program = make_collective("grid", config);
  for (int a = 1; a <= config.num_members; ++a) {
    CollectiveConfig other = config;
    other.grid = {a, config.num_members / a};
    if (config.num_members % a == 0 && make_collective("grid", other) == program) {
      return fmt::format("{}x{}", other.grid[0], other.grid[1]);
    }
  }
  return "none";
}

TEST(GridTest, TheDefaultIsMostSquareOrThatOfTheHosts) {
  EXPECT_EQ(default_grid({8, 64, {}, {}}), "4x2");
  EXPECT_EQ(default_grid({12, 64, {}, {}}), "4x3");
  EXPECT_EQ(default_grid({16, 64, {}, {}}), "4x4");
  EXPECT_EQ(default_grid({8, 64, {}, {0, 0, 1, 1, 2, 2, 3, 3}}), "2x4");
  EXPECT_EQ(default_grid({8, 64, {}, {0, 0, 0, 0, 0, 0, 3, 3}}), "4x2");  // unequal hosts
  EXPECT_EQ(default_grid({8, 64, {}, {7, 7, 7, 7, 7, 7, 7, 7}}), "4x2");  // one host
}

// Members dealt to hosts in turn: rings of dimension 1 still stay inside a host.
TEST(GridTest, TheInnerDimensionStaysInsideHosts) {
  const std::vector<int> host = {0, 1, 0, 1, 0, 1, 0, 1};
  const CollectiveProgram program = make_collective("grid", {8, 64, {}, host});
  for (int m = 0; m < 8; ++m) {
    for (const CollectiveOp& op : program.members[m].ops) {
      if (op.kind == CollectiveOp::Kind::kSend) {
        EXPECT_EQ(host[op.peer] == host[m], op.step < 3 || op.step > 4);
      }
    }
  }
}

TEST(GridTest, OtherProductsAreRefused) {
  const CollectiveEntry& entry = find_collective("grid");
  EXPECT_EQ(refusal(entry, {6, 10, {3, 2}, {}}), "");
  EXPECT_THAT(refusal(entry, {6, 10, {2, 2}, {}}), HasSubstr("with product 6, found 2 x 2"));
  EXPECT_THAT(refusal(entry, {6, 10, {-2, -3}, {}}), HasSubstr("found -2 x -3"));
  EXPECT_THAT(refusal(entry, {6, 10, {0, 6}, {}}), HasSubstr("found 0 x 6"));
  EXPECT_THAT(refusal(entry, {6, 10, {1 << 30, 1 << 30, 1 << 30}, {}}), HasSubstr("product 6"));
}

}  // namespace
}  // namespace millrace
