#include "millrace/rule/internal/ready_ranges.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/random.h"

namespace millrace::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The messages of one update whose tensors become ready from the last to the first.
std::vector<Range> messages(const std::vector<int64_t>& tensors, int64_t threshold) {
  int64_t end = std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
  ReadyRanges ready;
  std::vector<Range> all;
  for (auto size = tensors.rbegin(); size != tensors.rend(); ++size) {
    if (const auto joined = ready.add({end - *size, end}, threshold)) {
      all.push_back(*joined);
    }
    end -= *size;
  }
  const std::vector<Range> rest = ready.take_rest();
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

TEST(ReadyRanges, WaitUntilEnoughIsTogether) {
  ReadyRanges ready;
  EXPECT_FALSE(ready.add({8, 10}, 5));
  EXPECT_FALSE(ready.add({6, 8}, 5));
  EXPECT_EQ(ready.add({3, 6}, 5), (Range{3, 10}));
  EXPECT_FALSE(ready.add({0, 3}, 5));
  EXPECT_THAT(ready.take_rest(), ElementsAre(Range{0, 3}));
  EXPECT_THAT(ready.take_rest(), IsEmpty());
}

TEST(ReadyRanges, JoinOnlyWhatTouches) {
  ReadyRanges ready;
  EXPECT_FALSE(ready.add({8, 10}, 100));
  EXPECT_FALSE(ready.add({0, 2}, 100));
  EXPECT_FALSE(ready.add({4, 6}, 100));
  EXPECT_FALSE(ready.add({6, 8}, 100));  // joins both sides
  EXPECT_THAT(ready.take_rest(), ElementsAre(Range{0, 2}, Range{4, 10}));
}

TEST(ReadyRanges, ThresholdZeroIsEveryRangeByItself) {
  EXPECT_THAT(messages({2, 3, 4}, 0), ElementsAre(Range{5, 9}, Range{2, 5}, Range{0, 2}));
  EXPECT_THAT(messages({2, 0, 4}, 0), ElementsAre(Range{2, 6}, Range{0, 2}));
}

// lenet: 431,080 parameters, one tensor of 400,000; 64 KiB of float32.
TEST(ReadyRanges, LenetSendsThreeMessages) {
  const std::vector<int64_t> lenet = {500, 20, 25000, 50, 400000, 500, 5000, 10};
  EXPECT_EQ(messages(lenet, 16384).size(), 3U);
  EXPECT_EQ(messages(lenet, 0).size(), 8U);
  EXPECT_EQ(messages(lenet, 1 << 20).size(), 1U);
}

TEST(ReadyRanges, NumberOfMessagesIsWithinBoundsAndNothingIsLost) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const RandomKey key(seed);
    std::vector<int64_t> tensors(1 + key.below(0, 20));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = 1 + static_cast<int64_t>(key.below(1 + i, 50));
    }
    const int64_t total = std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
    const int64_t threshold = 1 + static_cast<int64_t>(key.below(100, 120));
    const int64_t most = threshold + *std::max_element(tensors.begin(), tensors.end()) - 1;
    const std::vector<Range> all = messages(tensors, threshold);
    const auto num = static_cast<int64_t>(all.size());
    EXPECT_GE(num, (total + most - 1) / most) << seed;
    EXPECT_LE(num, std::min(static_cast<int64_t>(tensors.size()), total / threshold + 1)) << seed;
    int64_t end = total;
    for (const Range& range : all) {
      EXPECT_EQ(range.end, end) << seed;
      end = range.begin;
    }
    EXPECT_EQ(end, 0) << seed;
  }
}

}  // namespace
}  // namespace millrace::internal
