// Batch normalization on plain arrays: libtorch's own forward takes nine times as long as a copy of
// its input. Free of libtorch. Used by layers/batch_norm2d.cc only; pure functions, any thread.
//
// Sums run over a fixed number of lanes and then in double, always in the same order: the same
// input gives the same bits on every call.
#pragma once

#include <cstdint>

namespace millrace::internal {

// [batch, channels, plane], contiguous; a plane is an image of one channel.
struct NormShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t plane = 0;
  int64_t values() const { return batch * plane; }  // per channel
};

// Mean and biased variance of every channel, to `mean` and `variance` [channels]. Two passes, so
// that a large mean costs no digits. Needs values() >= 1.
template <typename T>
void channel_moments(const NormShape& shape, const T* in, double* mean, double* variance);

// out = (in - mean) * scale + shift, by channel; may not overlap.
template <typename T>
void scale_channels(const NormShape& shape, const T* in, const double* mean, const double* scale,
                    const double* shift, T* out);

// Sums over each channel of grad and of grad * (in - mean), to `sum` and `product` [channels].
template <typename T>
void channel_products(const NormShape& shape, const T* grad, const T* in, const double* mean,
                      double* sum, double* product);

// What belongs to each channel in combine_channels.
struct Combination {
  const double* mean;
  const double* of_grad;
  const double* of_in;
  const double* rest;
};

// out = of_grad * grad + of_in * (in - mean) + rest, by channel; may not overlap.
template <typename T>
void combine_channels(const NormShape& shape, const T* grad, const T* in,
                      const Combination& combination, T* out);

}  // namespace millrace::internal
