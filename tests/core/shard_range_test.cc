#include "millrace/core/shard_range.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ShardRange, RangesCoverAllElementsInMemberOrder) {
  for (const int members : {1, 2, 3, 5, 8}) {
    for (const int64_t elements : {0, 1, 15, 16, 17, 100, 1000, 4096}) {
      int64_t next = 0;
      for (int member = 0; member < members; ++member) {
        const ShardRange range = shard_range(member, members, elements);
        EXPECT_EQ(range.begin, next);
        EXPECT_TRUE(range.begin % 16 == 0 || range.size() == 0);
        EXPECT_LE(range.size(), (elements / members / 16 + 2) * 16);
        next = range.end;
      }
      EXPECT_EQ(next, elements);
    }
  }
}

}  // namespace
}  // namespace millrace
