// What the page's script draws from, as one JSON object that may stand inside a <script> element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/events.h"
#include "millrace/report/report.h"

namespace millrace::internal {

// The loss of a run, thinned for drawing.
struct LossCurve {
  std::vector<int64_t> step;
  std::vector<double> raw;  // NaN and infinities are kept
  std::vector<double>
      smooth;  // exponential mean over some `smooth_steps` to each side; NaN without a finite loss
  int64_t smooth_steps = 1;  // 1: not smoothed, too few steps
};

// At most about `max_points` points: of each stretch of steps the smallest and the largest loss
// and, if there is one, the first that is no number. The mean is taken before thinning.
LossCurve loss_curve(const std::vector<StepEvent>& steps, std::size_t max_points);

// {"loss": {...}, "evals": {...}, "paints": [...], "timeline": {...}};
// millrace/report/assets/report.js and timeline.js read it. Of each trace at most about
// `max_events` events are kept, those nearest to its steady part. Times are whole nanoseconds from
// where that part begins, so that both traces start a step at 0.
std::string page_data(const RunReport& report, std::size_t max_events);

}  // namespace millrace::internal
