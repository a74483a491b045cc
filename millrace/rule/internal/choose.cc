#include "millrace/rule/internal/choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

double orderly(double score) {
  return std::isnan(score) ? std::numeric_limits<double>::infinity() : score;
}

}  // namespace

std::vector<uint32_t> highest(std::span<const double> scores, int64_t count) {
  const auto size = static_cast<int64_t>(scores.size());
  MILLRACE_CHECK(count >= 0 && count <= size, "more of the highest than there are");
  std::vector<uint32_t> chosen;
  if (count == 0) {
    return chosen;
  }
  // The lowest score that is in, then one pass in order of indices: no sort, no jumps.
  std::vector<double> sorted(scores.size());
  std::transform(scores.begin(), scores.end(), sorted.begin(), orderly);
  std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
  const double lowest = sorted[static_cast<std::size_t>(count - 1)];
  int64_t num_ties = count - std::count_if(sorted.begin(), sorted.begin() + count,
                                           [lowest](double score) { return score > lowest; });
  chosen.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < size; ++i) {
    const double score = orderly(scores[static_cast<std::size_t>(i)]);
    const bool tie = score == lowest && num_ties > 0;
    if (score > lowest || tie) {
      chosen.push_back(static_cast<uint32_t>(i));
      num_ties -= tie ? 1 : 0;
    }
  }
  return chosen;
}

std::vector<uint32_t> first_indices(int64_t count) {
  std::vector<uint32_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0U);
  return indices;
}

std::vector<uint32_t> draw_others(const RandomKey& key, int64_t size,
                                  std::span<const uint32_t> taken, int64_t count) {
  const int64_t num_others = size - static_cast<int64_t>(taken.size());
  MILLRACE_CHECK(count >= 0 && count <= num_others, "more draws than there are others");
  // Floyd's sampling (Bentley and Floyd, A Sample of Brilliance, CACM 30(9), 1987): `count` draws
  // and one bit for each of the others.
  std::vector<bool> drawn(static_cast<std::size_t>(num_others));
  for (int64_t i = 0; i < count; ++i) {
    const auto last = static_cast<uint64_t>(num_others - count + i);
    const uint64_t draw = key.below(static_cast<uint64_t>(i), last + 1);
    drawn[drawn[draw] ? last : draw] = true;
  }
  std::vector<uint32_t> chosen;
  chosen.reserve(static_cast<std::size_t>(count));
  std::size_t num_taken = 0;
  for (int64_t index = 0; index < size; ++index) {
    if (num_taken < taken.size() && taken[num_taken] == index) {
      ++num_taken;
    } else if (drawn[static_cast<std::size_t>(index) - num_taken]) {
      chosen.push_back(static_cast<uint32_t>(index));
    }
  }
  return chosen;
}

}  // namespace millrace::internal
