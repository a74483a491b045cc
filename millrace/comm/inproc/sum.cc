#include "millrace/comm/inproc/sum.h"

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

constexpr int64_t kLineBytes = 64;

// A block of every buffer should stay in the second-level cache from its reading to its writing.
constexpr int64_t kBlockBytes = 16 * 1024;

// The inner loops have a constant length because -O2 vectorises no others.
template <class T>
void add(T* __restrict to, const T* __restrict from, int64_t size) {
  constexpr int64_t kLanes = kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      to[i + lane] += from[i + lane];
    }
  }
  for (; i < size; ++i) {
    to[i] += from[i];
  }
}

// The most frequent case in one pass: both buffers get their sum.
template <class T>
void add_both(T* __restrict a, T* __restrict b, int64_t size) {
  constexpr int64_t kLanes = kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const T sum = a[i + lane] + b[i + lane];
      a[i + lane] = sum;
      b[i + lane] = sum;
    }
  }
  for (; i < size; ++i) {
    a[i] = b[i] = a[i] + b[i];
  }
}

}  // namespace

template <class T>
void sum_into_all(std::span<T* const> buffers, int64_t begin, int64_t end) {
  if (buffers.size() == 2) {
    add_both(buffers[0] + begin, buffers[1] + begin, end - begin);
    return;
  }
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(T));
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t size = std::min(kBlock, end - block);
    T* sum = buffers[0] + block;
    for (std::size_t k = 1; k < buffers.size(); ++k) {
      add(sum, buffers[k] + block, size);
    }
    for (std::size_t k = 1; k < buffers.size(); ++k) {
      std::memcpy(buffers[k] + block, sum, static_cast<std::size_t>(size) * sizeof(T));
    }
  }
}

template <class T>
void sum_into(std::span<const T* const> buffers, int64_t size, T* out) {
  if (size == 0) {
    return;
  }
  std::memcpy(out, buffers[0], static_cast<std::size_t>(size) * sizeof(T));
  for (std::size_t k = 1; k < buffers.size(); ++k) {
    add(out, buffers[k], size);
  }
}

Share share_of(int member, int num_members, int64_t size, int64_t element_bytes) {
  const int64_t per_line = kLineBytes / element_bytes;
  const int64_t num_lines = (size + per_line - 1) / per_line;
  const auto border = [&](int64_t index) {
    return std::min(size, num_lines * index / num_members * per_line);
  };
  return {border(member), border(member + 1)};
}

template void sum_into_all(std::span<float* const>, int64_t, int64_t);
template void sum_into_all(std::span<double* const>, int64_t, int64_t);
template void sum_into(std::span<const float* const>, int64_t, float*);
template void sum_into(std::span<const double* const>, int64_t, double*);

}  // namespace millrace
