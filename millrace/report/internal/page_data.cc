#include "millrace/report/internal/page_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>

#include "millrace/report/internal/escape.h"
#include "millrace/report/internal/paint.h"
#include "millrace/report/internal/steady.h"

namespace millrace::internal {
namespace {

constexpr int64_t kStepsInView = 6;
constexpr std::size_t kMostLossPoints = 3000;
constexpr int64_t kFewestStepsToSmooth = 20;

template <typename Items, typename Write>
std::string json_list(const Items& items, Write write) {
  std::string text = "[";
  for (const auto& item : items) {
    text += text.size() > 1 ? "," : "";
    text += write(item);
  }
  return text + "]";
}

std::string integer(int64_t value) { return fmt::format("{}", value); }

// Adds to `sums` and `weights` each step's exponential mean over itself and what came before it in
// this order.
template <typename Steps, typename Numbers>
void add_one_sided(Steps begin, Steps end, double keep, Numbers sums, Numbers weights) {
  double sum = 0;
  double weight = 0;
  for (; begin != end; ++begin, ++sums, ++weights) {
    const bool finite = std::isfinite(begin->loss);
    sum = sum * keep + (finite ? begin->loss : 0);
    weight = weight * keep + (finite ? 1 : 0);
    *sums += sum;
    *weights += weight;
  }
}

// Exponential mean to both sides: one to the past alone would trail behind a falling loss. Not
// drawn to a first value; NaN where no finite loss is near.
std::vector<double> smoothed(const std::vector<StepEvent>& steps, int64_t over_steps) {
  const double keep = 1 - 1 / static_cast<double>(over_steps);
  std::vector<double> sums(steps.size());
  std::vector<double> weights(steps.size());
  add_one_sided(steps.begin(), steps.end(), keep, sums.begin(), weights.begin());
  add_one_sided(steps.rbegin(), steps.rend(), keep, sums.rbegin(), weights.rbegin());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    sums[i] = weights[i] > 0 ? sums[i] / weights[i] : std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

// Indices of the points to draw from [begin, end), in order.
std::vector<std::size_t> extremes(const std::vector<StepEvent>& steps, std::size_t begin,
                                  std::size_t end) {
  std::size_t least = end;
  std::size_t most = end;
  std::vector<std::size_t> chosen;
  for (std::size_t i = begin; i < end; ++i) {
    const double loss = steps[i].loss;
    if (!std::isfinite(loss)) {
      if (chosen.empty()) {
        chosen.push_back(i);
      }
      continue;
    }
    least = least == end || loss < steps[least].loss ? i : least;
    most = most == end || loss > steps[most].loss ? i : most;
  }
  if (least != end) {
    chosen.push_back(least);
    chosen.push_back(most);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

std::string loss_json(const LossCurve& curve) {
  return fmt::format(R"({{"smooth_steps":{},"step":{},"raw":{},"smooth":{}}})", curve.smooth_steps,
                     json_list(curve.step, integer), json_list(curve.raw, json_number),
                     json_list(curve.smooth, json_number));
}

std::string evals_json(const std::vector<EvalEvent>& evals) {
  return fmt::format(
      R"({{"step":{},"accuracy":{},"loss":{}}})",
      json_list(evals, [](const EvalEvent& eval) { return integer(eval.step); }),
      json_list(evals, [](const EvalEvent& eval) { return json_number(eval.accuracy); }),
      json_list(evals, [](const EvalEvent& eval) { return json_number(eval.loss); }));
}

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Events that start in a stretch of time are kept.
struct Stretch {
  double from_s = -std::numeric_limits<double>::infinity();
  double to_s = std::numeric_limits<double>::infinity();
  bool holds(const TraceEvent& event) const {
    return event.start_s >= from_s && event.start_s <= to_s;
  }
};

std::size_t count_in(const Trace& trace, Stretch stretch) {
  std::size_t count = 0;
  for (const RankTrace& rank : trace.ranks) {
    count += static_cast<std::size_t>(
        std::count_if(rank.events.begin(), rank.events.end(),
                      [&](const TraceEvent& event) { return stretch.holds(event); }));
  }
  return count;
}

std::size_t count_in(const Trace& trace, const TimeWindow& window) {
  return count_in(trace, Stretch{window.start_s, window.end_s});
}

// The stretch around the window that holds about `max_events` events; when the window alone holds
// more, its first ones.
Stretch choose_stretch(const Trace& trace, const TimeWindow& window, std::size_t max_events) {
  if (num_events(trace) <= max_events) {
    return {};
  }
  const bool window_fits = count_in(trace, window) <= max_events;
  const double center_s = window_fits ? window.start_s + window.length_s() / 2 : window.start_s;
  std::vector<double> distances_s;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      if (window_fits || event.start_s >= center_s) {
        distances_s.push_back(std::fabs(event.start_s - center_s));
      }
    }
  }
  const std::size_t count = std::min(max_events, distances_s.size() - 1);
  const auto nth = distances_s.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(distances_s.begin(), nth, distances_s.end());
  return {window_fits ? center_s - *nth : center_s, center_s + *nth};
}

// The lanes of one trace, by rank, and what the page tells about it.
struct DrawnTrace {
  std::string about = "null";
  std::map<int, std::string> events;  // by rank: [[text, paint, start, duration, wait, bytes], ...]
  std::map<int, std::string> stages;  // by rank, in words
};

DrawnTrace draw(const Trace& trace, int64_t num_steps, std::size_t max_events) {
  DrawnTrace drawn;
  const TimeWindow window = steady_window(trace, num_steps);
  const Stretch stretch = choose_stretch(trace, window, max_events);
  std::size_t kept = 0;
  for (const RankTrace& rank : trace.ranks) {
    std::string& text = drawn.events[rank.rank];
    drawn.stages[rank.rank] = describe_stages(rank.stages);
    for (const TraceEvent& event : rank.events) {
      if (!stretch.holds(event)) {
        continue;
      }
      ++kept;
      // Ends are rounded, not durations: back to back stays back to back.
      const int64_t start = nanoseconds(event.start_s - window.start_s);
      fmt::format_to(std::back_inserter(text), "{}[{},{},{},{},{},{}]", text.empty() ? "[" : ",",
                     json_string(to_string(event.action)), paint_of(event.action.kind), start,
                     nanoseconds(event.end_s - window.start_s) - start, nanoseconds(event.wait_s),
                     event.bytes);
    }
    text += text.empty() ? "[]" : "]";
  }
  drawn.about = fmt::format(
      R"({{"view":{},"first_step":{},"num_steps":{},"step_s":{},"kept":{},"events":{},"complete":{}}})",
      nanoseconds(std::min(window.end_s, stretch.to_s) - window.start_s), window.first_step + 1,
      window.num_steps, json_number(trace.step_s), kept, num_events(trace), trace.complete);
  return drawn;
}

std::string timeline_json(const RunReport& report, std::size_t max_events) {
  // Both show the same number of steps, fewer when six would be more events than are kept.
  int64_t num_steps = kStepsInView;
  for (const auto& trace : {&report.predicted, &report.measured}) {
    while (*trace && num_steps > 1 &&
           count_in(**trace, steady_window(**trace, num_steps)) > max_events) {
      --num_steps;
    }
  }
  const auto drawn = [&](const std::optional<Trace>& trace) {
    return trace ? draw(*trace, num_steps, max_events) : DrawnTrace();
  };
  const DrawnTrace predicted = drawn(report.predicted);
  const DrawnTrace measured = drawn(report.measured);
  std::map<int, std::string> stages = predicted.stages;
  for (const auto& [rank, stage] : measured.stages) {
    stages[rank] = stage;
  }
  const auto lane = [](const DrawnTrace& trace, int rank) {
    const auto found = trace.events.find(rank);
    return found == trace.events.end() ? std::string("null") : found->second;
  };
  const std::string workers = json_list(stages, [&](const auto& entry) {
    return fmt::format(R"({{"rank":{},"stages":{},"predicted":{},"measured":{}}})", entry.first,
                       json_string(entry.second), lane(predicted, entry.first),
                       lane(measured, entry.first));
  });
  return fmt::format("{{\"predicted\":{},\"measured\":{},\n\"workers\":{}}}", predicted.about,
                     measured.about, workers);
}

}  // namespace

LossCurve loss_curve(const std::vector<StepEvent>& steps, std::size_t max_points) {
  LossCurve curve;
  const auto count = static_cast<int64_t>(steps.size());
  if (count >= kFewestStepsToSmooth) {
    curve.smooth_steps = std::clamp<int64_t>(count / 60, 4, 500);
  }
  const std::vector<double> means = smoothed(steps, curve.smooth_steps);
  // Two points of a stretch are drawn; a stretch of up to two steps is drawn whole.
  const std::size_t stretches = std::max<std::size_t>(1, max_points / 2);
  const std::size_t length = (steps.size() + stretches - 1) / stretches;
  for (std::size_t begin = 0; begin < steps.size(); begin += length) {
    for (std::size_t i : extremes(steps, begin, std::min(begin + length, steps.size()))) {
      curve.step.push_back(steps[i].step);
      curve.raw.push_back(steps[i].loss);
      // None where the loss is none: the mean of what was before would hide that.
      curve.smooth.push_back(std::isfinite(steps[i].loss) ? means[i] : steps[i].loss);
    }
  }
  return curve;
}

std::string page_data(const RunReport& report, std::size_t max_events) {
  const std::string paints = json_list(kPaints, [](const Paint& paint) {
    return fmt::format(R"({{"name":"{}","fill":"{}","ink":"{}"}})", paint.name, paint.fill,
                       paint.ink);
  });
  return fmt::format("{{\"loss\":{},\n\"evals\":{},\n\"paints\":{},\n\"timeline\":{}}}",
                     loss_json(loss_curve(report.steps, kMostLossPoints)), evals_json(report.evals),
                     paints, timeline_json(report, max_events));
}

}  // namespace millrace::internal
