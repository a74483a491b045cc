#include "millrace/model/internal/pool_kernels.h"

#include <algorithm>

namespace millrace::internal {
namespace {

// Without branches, so that the compiler turns it into vector selects: which of two neighbours is the
// larger is a coin toss to a branch predictor.
template <typename T, typename Index>
void forward_row_2(const T* __restrict top, const T* __restrict bottom, int64_t n,
                   T* __restrict out, Index* __restrict where) {
  for (int64_t j = 0; j < n; ++j) {
    const T a = top[2 * j];
    const T b = top[2 * j + 1];
    const T c = bottom[2 * j];
    const T d = bottom[2 * j + 1];
    const bool take_b = (b > a) | (b != b);
    const T upper = take_b ? b : a;
    const bool take_d = (d > c) | (d != d);
    const T lower = take_d ? d : c;
    const bool take_lower = (lower > upper) | (lower != lower);
    out[j] = take_lower ? lower : upper;
    where[j] = static_cast<Index>(take_lower ? 2 + take_d : 0 + take_b);
  }
}

template <typename T, typename Index>
void forward_row(const T* in, int64_t width, int64_t size, int64_t n, T* out, Index* where) {
  for (int64_t j = 0; j < n; ++j) {
    const T* window = in + j * size;
    T best = window[0];
    int64_t place = 0;
    for (int64_t r = 0; r < size; ++r) {
      for (int64_t c = 0; c < size; ++c) {
        const T value = window[r * width + c];
        if (value > best || value != value) {
          best = value;
          place = r * size + c;
        }
      }
    }
    out[j] = best;
    where[j] = static_cast<Index>(place);
  }
}

template <typename T, typename Index>
void backward_row_2(const T* __restrict grad, const Index* __restrict where, int64_t n,
                    T* __restrict top, T* __restrict bottom) {
  for (int64_t j = 0; j < n; ++j) {
    const T g = grad[j];
    const Index place = where[j];
    top[2 * j] = place == 0 ? g : T(0);
    top[2 * j + 1] = place == 1 ? g : T(0);
    bottom[2 * j] = place == 2 ? g : T(0);
    bottom[2 * j + 1] = place == 3 ? g : T(0);
  }
}

// `out` is zero already.
template <typename T, typename Index>
void backward_row(const T* grad, const Index* where, int64_t n, int64_t width, int64_t size,
                  T* out) {
  for (int64_t j = 0; j < n; ++j) {
    const int64_t place = where[j];
    out[(place / size) * width + j * size + place % size] = grad[j];
  }
}

}  // namespace

template <typename T, typename Index>
void max_pool_forward(const PoolShape& shape, const T* in, T* out, Index* where) {
  const int64_t rows = shape.out_height();
  const int64_t columns = shape.out_width();
  for (int64_t p = 0; p < shape.planes; ++p) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* band = in + (p * shape.height + i * shape.size) * shape.width;
      const int64_t at = (p * rows + i) * columns;
      if (shape.size == 2) {
        forward_row_2(band, band + shape.width, columns, out + at, where + at);
      } else {
        forward_row(band, shape.width, shape.size, columns, out + at, where + at);
      }
    }
  }
}

template <typename T, typename Index>
void max_pool_backward(const PoolShape& shape, const T* grad, const Index* where, T* out) {
  const int64_t rows = shape.out_height();
  const int64_t columns = shape.out_width();
  const bool covered = rows * shape.size == shape.height && columns * shape.size == shape.width;
  if (shape.size != 2 || !covered) {
    std::fill_n(out, shape.planes * shape.height * shape.width, T(0));
  }
  for (int64_t p = 0; p < shape.planes; ++p) {
    for (int64_t i = 0; i < rows; ++i) {
      T* band = out + (p * shape.height + i * shape.size) * shape.width;
      const int64_t at = (p * rows + i) * columns;
      if (shape.size == 2) {
        backward_row_2(grad + at, where + at, columns, band, band + shape.width);
      } else {
        backward_row(grad + at, where + at, columns, shape.width, shape.size, band);
      }
    }
  }
}

#define MILLRACE_POOL_KERNELS(T, Index)                                             \
  template void max_pool_forward<T, Index>(const PoolShape&, const T*, T*, Index*); \
  template void max_pool_backward<T, Index>(const PoolShape&, const T*, const Index*, T*);
MILLRACE_POOL_KERNELS(float, uint8_t)
MILLRACE_POOL_KERNELS(float, int32_t)
MILLRACE_POOL_KERNELS(double, uint8_t)
MILLRACE_POOL_KERNELS(double, int32_t)
#undef MILLRACE_POOL_KERNELS

}  // namespace millrace::internal
