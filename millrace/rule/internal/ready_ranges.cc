#include "millrace/rule/internal/ready_ranges.h"

#include <algorithm>
#include <utility>

namespace millrace::internal {

std::optional<Range> ReadyRanges::add(Range range, int64_t threshold) {
  if (range.size() == 0) {
    return std::nullopt;
  }
  const auto touches = [&range](const Range& other) {
    return other.end == range.begin || other.begin == range.end;
  };
  for (auto found = std::find_if(kept_.begin(), kept_.end(), touches); found != kept_.end();
       found = std::find_if(kept_.begin(), kept_.end(), touches)) {
    range = {std::min(range.begin, found->begin), std::max(range.end, found->end)};
    kept_.erase(found);
  }
  if (range.size() >= threshold) {
    return range;
  }
  kept_.push_back(range);
  return std::nullopt;
}

std::vector<Range> ReadyRanges::take_rest() { return std::exchange(kept_, {}); }

}  // namespace millrace::internal
