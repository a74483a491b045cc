#include "millrace/model/internal/norm_kernels.h"

#include <algorithm>

namespace millrace::internal {
namespace {

// Independent partial sums, so that a compiler that may not reorder additions still finds vectors.
constexpr int64_t kLanes = 16;
// After so many values the lanes go into a double: float32 lanes then hold few hundred roundings.
constexpr int64_t kBlock = 4096;

// Sum over i < n of f(i).
template <typename T, typename F>
double sum_of(int64_t n, const F& f) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    T lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += f(i + lane);
      }
    }
    double rest = 0;
    for (; i < end; ++i) {
      rest += static_cast<double>(f(i));
    }
    for (const T lane : lanes) {
      rest += static_cast<double>(lane);
    }
    total += rest;
  }
  return total;
}

// Sum over a channel's planes of sum_of(f on the plane that starts at an offset).
template <typename T, typename F>
double channel_sum(const NormShape& shape, int64_t channel, const F& plane_term) {
  double total = 0;
  for (int64_t n = 0; n < shape.batch; ++n) {
    const int64_t offset = (n * shape.channels + channel) * shape.plane;
    total += sum_of<T>(shape.plane, [&](int64_t i) { return plane_term(offset + i); });
  }
  return total;
}

}  // namespace

template <typename T>
void channel_moments(const NormShape& shape, const T* in, double* mean, double* variance) {
  const auto count = static_cast<double>(shape.values());
  for (int64_t c = 0; c < shape.channels; ++c) {
    mean[c] = channel_sum<T>(shape, c, [=](int64_t i) { return in[i]; }) / count;
    const T middle = static_cast<T>(mean[c]);
    const double squares = channel_sum<T>(shape, c, [=](int64_t i) {
      const T difference = in[i] - middle;
      return difference * difference;
    });
    const double shift = static_cast<double>(middle) - mean[c];
    variance[c] = std::max(0.0, squares / count - shift * shift);
  }
}

template <typename T>
void scale_channels(const NormShape& shape, const T* in, const double* mean, const double* scale,
                    const double* shift, T* out) {
  for (int64_t n = 0; n < shape.batch; ++n) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      const int64_t offset = (n * shape.channels + c) * shape.plane;
      const T* __restrict from = in + offset;
      T* __restrict to = out + offset;
      const T middle = static_cast<T>(mean[c]);
      const T a = static_cast<T>(scale[c]);
      const T b = static_cast<T>(shift[c]);
      for (int64_t i = 0; i < shape.plane; ++i) {
        to[i] = (from[i] - middle) * a + b;
      }
    }
  }
}

template <typename T>
void channel_products(const NormShape& shape, const T* grad, const T* in, const double* mean,
                      double* sum, double* product) {
  for (int64_t c = 0; c < shape.channels; ++c) {
    const T middle = static_cast<T>(mean[c]);
    sum[c] = channel_sum<T>(shape, c, [=](int64_t i) { return grad[i]; });
    const double about =
        channel_sum<T>(shape, c, [=](int64_t i) { return grad[i] * (in[i] - middle); });
    product[c] = about + sum[c] * (static_cast<double>(middle) - mean[c]);
  }
}

template <typename T>
void combine_channels(const NormShape& shape, const T* grad, const T* in,
                      const Combination& combination, T* out) {
  for (int64_t n = 0; n < shape.batch; ++n) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      const int64_t offset = (n * shape.channels + c) * shape.plane;
      const T* __restrict g = grad + offset;
      const T* __restrict x = in + offset;
      T* __restrict to = out + offset;
      const T middle = static_cast<T>(combination.mean[c]);
      const T of_grad = static_cast<T>(combination.of_grad[c]);
      const T of_in = static_cast<T>(combination.of_in[c]);
      const T rest = static_cast<T>(combination.rest[c]);
      for (int64_t i = 0; i < shape.plane; ++i) {
        to[i] = g[i] * of_grad + (x[i] - middle) * of_in + rest;
      }
    }
  }
}

template void channel_moments(const NormShape&, const float*, double*, double*);
template void channel_moments(const NormShape&, const double*, double*, double*);
template void scale_channels(const NormShape&, const float*, const double*, const double*,
                             const double*, float*);
template void scale_channels(const NormShape&, const double*, const double*, const double*,
                             const double*, double*);
template void channel_products(const NormShape&, const float*, const float*, const double*, double*,
                               double*);
template void channel_products(const NormShape&, const double*, const double*, const double*,
                               double*, double*);
template void combine_channels(const NormShape&, const float*, const float*, const Combination&,
                               float*);
template void combine_channels(const NormShape&, const double*, const double*, const Combination&,
                               double*);

}  // namespace millrace::internal
