// Which of many: the highest scores, and draws without replacement. Pure functions, for rules that
// send a part of a vector. Indices are 32 bits: sizes are at most 2^32 - 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/random.h"

namespace millrace::internal {

// What these cost, as elements of a pass (Port::charge): processor time of each beside an update of
// SGD with momentum, a quarter of whose time is a pass; 3 million float32, 15% chosen and 15%
// drawn, an AMD EPYC that other work kept busy. Of smaller vectors, which a cache holds, twice as
// much.
constexpr int64_t kHighestCost = 48;  // highest(), each of all elements
constexpr int64_t kDrawCost = 220;    // draw_others(), each draw
constexpr int64_t kSkimCost = 8;      // draw_others(), each of all elements besides
constexpr int64_t kPickCost = 12;     // reading or writing a chosen element in its place

// The indices of the `count` highest of `scores` (0 <= count <= size), ascending. Ties go to the
// lower index; NaN counts as infinite, so that any scores have one answer.
std::vector<uint32_t> highest(std::span<const double> scores, int64_t count);

// The first `count` indices: what highest() gives for equal scores.
std::vector<uint32_t> first_indices(int64_t count);

// `count` of the indices below `size` that `taken` (ascending) lacks, ascending: each such set is
// equally likely, and equal keys draw equal sets. Needs count <= size - taken.size().
std::vector<uint32_t> draw_others(const RandomKey& key, int64_t size,
                                  std::span<const uint32_t> taken, int64_t count);

}  // namespace millrace::internal
