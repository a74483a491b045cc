// The arithmetic of in-process reductions: sums of several buffers, element by element in buffer
// order, so that the result depends neither on who computes it nor on how the elements are split.
// Pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace millrace {

// Elements [begin, end) of all buffers become their sum b0 + b1 + ... Instantiated for float and
// double.
template <class T>
void sum_into_all(std::span<T* const> buffers, int64_t begin, int64_t end);

// out[0, size) = b0 + b1 + ... ; `out` is none of the buffers.
template <class T>
void sum_into(std::span<const T* const> buffers, int64_t size, T* out);

// First and one past the last element of a member's share of `size` elements: shares cover all, in
// member order, and begin on multiples of 64 bytes, so that no two members write to one cache line.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};
Share share_of(int member, int num_members, int64_t size, int64_t element_bytes);

}  // namespace millrace
