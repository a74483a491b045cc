#include "millrace/model/internal/pool_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "millrace/base/random.h"

namespace millrace::internal {
namespace {

// Sizes around one and two vectors of either type, with and without a border that fills no window.
template <typename T, typename Index>
void compare_with_definition(const PoolShape& shape) {
  SCOPED_TRACE(::testing::Message() << shape.height << "x" << shape.width << " by " << shape.size);
  const auto in_size = static_cast<std::size_t>(shape.planes * shape.height * shape.width);
  const auto out_size =
      static_cast<std::size_t>(shape.planes * shape.out_height() * shape.out_width());
  std::vector<T> in(in_size);
  const RandomKey key = RandomKey(7).with("pool");
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<T>(key.below(i, 5));  // few values, so that equal ones meet
  }
  std::vector<T> out(out_size, T(-1));
  std::vector<Index> where(out_size, Index(99));
  max_pool_forward(shape, in.data(), out.data(), where.data());
  std::vector<T> grad(out_size);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    grad[i] = static_cast<T>(i + 1);
  }
  std::vector<T> back(in_size, T(-1));
  max_pool_backward(shape, grad.data(), where.data(), back.data());

  std::vector<T> expected_back(in_size, T(0));
  std::size_t at = 0;
  for (int64_t p = 0; p < shape.planes; ++p) {
    for (int64_t i = 0; i < shape.out_height(); ++i) {
      for (int64_t j = 0; j < shape.out_width(); ++j, ++at) {
        std::size_t first = 0;
        int64_t place = -1;
        for (int64_t k = 0; k < shape.size * shape.size; ++k) {
          const int64_t row = i * shape.size + k / shape.size;
          const int64_t column = j * shape.size + k % shape.size;
          const auto from =
              static_cast<std::size_t>((p * shape.height + row) * shape.width + column);
          if (place < 0 || in[from] > in[first]) {
            first = from;
            place = k;
          }
        }
        ASSERT_EQ(out[at], in[first]) << at;
        ASSERT_EQ(static_cast<int64_t>(where[at]), place) << at;
        expected_back[first] = grad[at];
      }
    }
  }
  EXPECT_EQ(back, expected_back);
}

TEST(PoolKernels, AgreeWithTheDefinitionOnEverySmallSize) {
  for (int64_t size = 1; size <= 4; ++size) {
    for (int64_t height = size; height <= 2 * size + 1; ++height) {
      for (int64_t width = size; width <= 11 * size; ++width) {
        compare_with_definition<float, uint8_t>({3, height, width, size});
        compare_with_definition<double, uint8_t>({3, height, width, size});
      }
    }
  }
}

TEST(PoolKernels, WideIndexForLargeWindows) {
  compare_with_definition<float, int32_t>({2, 40, 37, 17});
  compare_with_definition<double, int32_t>({2, 37, 40, 17});
  compare_with_definition<float, int32_t>({2, 5, 9, 2});
  compare_with_definition<float, uint8_t>({1, 33, 32, kMaxSmallPool});
}

template <typename T>
void nan_wins(int64_t width) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (int place = 0; place < 4; ++place) {
    std::vector<T> in(static_cast<std::size_t>(2 * width), T(1));
    in[static_cast<std::size_t>((place / 2) * width + place % 2)] = nan;
    std::vector<T> out(static_cast<std::size_t>(width / 2));
    std::vector<uint8_t> where(out.size());
    max_pool_forward(PoolShape{1, 2, width, 2}, in.data(), out.data(), where.data());
    EXPECT_TRUE(std::isnan(out[0])) << "place " << place << ", width " << width;
    EXPECT_EQ(where[0], place);
    for (std::size_t j = 1; j < out.size(); ++j) {
      EXPECT_EQ(out[j], T(1));
    }
  }
}

TEST(PoolKernels, NanWinsInBothForms) {
  nan_wins<float>(2);  // shorter than a vector
  nan_wins<float>(8);
  nan_wins<double>(2);
  nan_wins<double>(6);
}

}  // namespace
}  // namespace millrace::internal
