#include "millrace/comm/inproc/sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "millrace/base/random.h"

namespace millrace {
namespace {

template <class T>
class SumTest : public testing::Test {};
using Dtypes = testing::Types<float, double>;
TYPED_TEST_SUITE(SumTest, Dtypes);

constexpr int64_t kSizes[] = {0, 1, 7, 15, 16, 17, 1023, 4096, 10007};

template <class T>
std::vector<std::vector<T>> random_buffers(int num, int64_t size) {
  std::vector<std::vector<T>> buffers;
  for (int k = 0; k < num; ++k) {
    const RandomKey key = RandomKey(11).with(static_cast<uint64_t>(k));
    std::vector<T>& buffer = buffers.emplace_back();
    for (int64_t i = 0; i < size; ++i) {
      buffer.push_back(static_cast<T>(key.normal(static_cast<uint64_t>(i))));
    }
  }
  return buffers;
}

// Left to right, one element at a time: the definition.
template <class T>
std::vector<T> plain_sum(const std::vector<std::vector<T>>& buffers) {
  std::vector<T> sum = buffers.front();
  for (std::size_t k = 1; k < buffers.size(); ++k) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += buffers[k][i];
    }
  }
  return sum;
}

// Random values, whose sums depend on the order of adding, so equality in bits pins the order.
TYPED_TEST(SumTest, SharesTogetherMakeThePlainSumInEveryBufferBitForBit) {
  for (const int num : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t size : kSizes) {
      auto buffers = random_buffers<TypeParam>(num, size);
      const std::vector<TypeParam> expected = plain_sum(buffers);
      std::vector<TypeParam*> pointers;
      for (auto& buffer : buffers) {
        pointers.push_back(buffer.data());
      }
      // Backwards: the order in which members get to their shares must not matter.
      for (int member = num - 1; member >= 0; --member) {
        const Share share = share_of(member, num, size, sizeof(TypeParam));
        sum_into_all<TypeParam>(pointers, share.begin, share.end);
      }
      for (const auto& buffer : buffers) {
        EXPECT_EQ(buffer, expected) << num << " buffers of " << size;
      }
    }
  }
}

TYPED_TEST(SumTest, ElementsOutsideTheRangeStay) {
  for (const int num : {2, 3}) {
    auto buffers = random_buffers<TypeParam>(num, 100);
    const auto before = buffers;
    const auto sum = plain_sum(buffers);
    std::vector<TypeParam*> pointers;
    for (auto& buffer : buffers) {
      pointers.push_back(buffer.data());
    }
    sum_into_all<TypeParam>(pointers, 37, 61);
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_EQ(buffers[k][i], i >= 37 && i < 61 ? sum[i] : before[k][i]) << k << " " << i;
      }
    }
  }
}

TYPED_TEST(SumTest, IntoOneBufferLeavesTheOthers) {
  for (const int num : {1, 2, 5}) {
    for (const int64_t size : kSizes) {
      const auto buffers = random_buffers<TypeParam>(num, size);
      const auto before = buffers;
      std::vector<const TypeParam*> pointers;
      for (const auto& buffer : buffers) {
        pointers.push_back(buffer.data());
      }
      std::vector<TypeParam> out(static_cast<std::size_t>(size), TypeParam{-1});
      sum_into<TypeParam>(pointers, size, out.data());
      EXPECT_EQ(out, plain_sum(buffers));
      EXPECT_EQ(buffers, before);
    }
  }
}

TEST(Share, CoverEverythingOnceInOrderOnCacheLines) {
  for (const int64_t element_bytes : {4, 8}) {
    const int64_t per_line = 64 / element_bytes;
    for (const int num : {1, 2, 3, 4, 5, 8, 64}) {
      for (const int64_t size : {0L, 1L, 7L, 8L, 16L, 17L, 1023L, 1L << 20, (1L << 20) + 3}) {
        int64_t at = 0;
        for (int member = 0; member < num; ++member) {
          const Share share = share_of(member, num, size, element_bytes);
          EXPECT_EQ(share.begin, at);
          EXPECT_LE(share.begin, share.end);
          EXPECT_TRUE(share.begin % per_line == 0 || share.begin == size);
          EXPECT_LE(share.end - share.begin, size / num + 2 * per_line);
          at = share.end;
        }
        EXPECT_EQ(at, size);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
