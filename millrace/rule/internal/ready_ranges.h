// Lazy fusion of what becomes ready bit by bit: ranges that touch are joined until enough is
// together for one reduction. Plain values, one update at a time.
//
// Source: Sun et al., Optimizing Network Performance for Distributed DNN Training on GPU Clusters:
// ImageNet/AlexNet Training in 1.5 Minutes (GradientFlow), arXiv:1902.06855, lazy all-reduce.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/rule/port.h"

namespace millrace::internal {

class ReadyRanges {
 public:
  // Takes in a range that is ready. Gives the joined range that it completes, when that has
  // `threshold` elements or more and is not empty; it then is no longer kept.
  std::optional<Range> add(Range range, int64_t threshold);
  // All that is still kept, joined, in order of arrival; nothing is kept afterwards.
  std::vector<Range> take_rest();

 private:
  std::vector<Range> kept_;  // no two touch
};

}  // namespace millrace::internal
