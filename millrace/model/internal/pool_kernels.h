// Max-pooling on plain arrays: libtorch's own forward takes 22 times as long as a copy of its
// input. Free of libtorch. Used by layers/max_pool2d.cc only; pure functions, any thread.
#pragma once

#include <cstdint>

namespace millrace::internal {

// `planes` images of height x width, contiguous, pooled by non-overlapping size x size windows.
// Rows and columns that fill no window are left out.
struct PoolShape {
  int64_t planes = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t size = 1;
  int64_t out_height() const { return height / size; }
  int64_t out_width() const { return width / size; }
};

// Largest window whose places fit the index type of the small kernels.
inline constexpr int64_t kMaxSmallPool = 16;

// Writes the largest value of each window to `out` [planes, out_height, out_width], and its place
// in the window (row * size + column) to `where`, of the same shape. The first of equal values
// wins, and a NaN wins over everything, as in libtorch. Index uint8_t needs size <= kMaxSmallPool.
template <typename T, typename Index>
void max_pool_forward(const PoolShape& shape, const T* in, T* out, Index* where);

// Writes all of `out` [planes, height, width]: `grad` at each window's place, zero elsewhere.
template <typename T, typename Index>
void max_pool_backward(const PoolShape& shape, const T* grad, const Index* where, T* out);

}  // namespace millrace::internal
