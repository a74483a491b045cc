#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/escape.h"
#include "millrace/report/internal/paint.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/internal/steady.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

using internal::kPaints;
using internal::TimeWindow;

constexpr std::size_t kMostEvents = 5000;
constexpr int64_t kStepsWhenCut = 4;
constexpr double kRowHeight = 30;
constexpr double kBoxHeight = 24;
constexpr double kTop = 40;
constexpr double kLetterWidth = 7;  // of the 12 px font, roughly

// "F12", "B0-3", "STEP": what a box needs to say when its row says the stage.
std::string box_text(const Action& action) {
  std::string text = to_string(action);
  text.erase(0, text.find_first_not_of("0123456789"));
  return text.substr(0, text.find_first_of("@<>"));
}

// Distance between axis ticks: 1, 2 or 5 times a power of ten, about `target`.
double tick_step(double target) {
  const double power = std::pow(10.0, std::floor(std::log10(target)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= target) {
      return factor * power;
    }
  }
  return 10 * power;
}

// Pixels of the chart: wide enough that the shortest computation can hold its text, within reason.
double chart_width(const Trace& trace, TimeWindow window) {
  double shortest_s = window.length_s();
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      if (is_compute(event.action.kind) && event.end_s > event.start_s) {
        shortest_s = std::min(shortest_s, event.end_s - event.start_s);
      }
    }
  }
  return shortest_s > 0 ? std::clamp(28 * window.length_s() / shortest_s, 480.0, 1800.0) : 480.0;
}

class Chart {
 public:
  Chart(const Trace& trace, TimeWindow window, double left, double width)
      : window_(window),
        left_(left),
        width_(width),
        bottom_(kTop + kRowHeight * static_cast<double>(trace.ranks.size())) {}

  double bottom() const { return bottom_; }

  void background_row(std::size_t row, const std::string& label) {
    add(R"(<text x="8" y="{:.1f}">{}</text>)", y_of(row) + 16, internal::escape_markup(label));
    add(R"(<rect class="idle" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"/>)", left_,
        y_of(row), width_, kBoxHeight);
  }

  void box(const TraceEvent& event, std::size_t row) {
    const std::size_t paint = internal::paint_of(event.action.kind);
    const double wait_end_s = std::min(event.end_s, event.start_s + event.wait_s);
    if (wait_end_s > event.start_s) {
      rectangle(event, row, event.start_s, wait_end_s, internal::kWaitPaint);
    }
    if (event.end_s > wait_end_s) {
      rectangle(event, row, wait_end_s, event.end_s, paint);
    }
  }

  void axis(internal::TimeUnit unit) {
    const double length = window_.length_s() / unit.in_seconds;
    if (length <= 0) {
      return;
    }
    const double step = tick_step(length * 70 / width_);
    for (int i = 0; step * i <= length * (1 + 1e-9); ++i) {
      const double x = left_ + width_ * step * i / length;
      add(R"(<path class="tick" d="M{0:.1f} {1}V{2}"/>)", x, kTop - 6, bottom_);
      add(R"(<text class="axis" x="{:.1f}" y="{:.1f}">{:g}</text>)", x, bottom_ + 14, step * i);
    }
    add(R"(<text class="axis" x="{:.1f}" y="{:.1f}">{}</text>)", left_ + width_ + 20, bottom_ + 14,
        unit.name);
  }

  // Colour and name of every paint that some box uses.
  void legend() {
    double x = left_;
    for (std::size_t p = 0; p < kPaints.size(); ++p) {
      if (used_[p]) {
        add(R"(<rect x="{:.1f}" y="{:.1f}" width="12" height="12" fill="{}"/>)", x, bottom_ + 26,
            fill_of(p));
        add(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", x + 17, bottom_ + 36, kPaints[p].name);
        x += 36 + kLetterWidth * static_cast<double>(kPaints[p].name.size());
      }
    }
  }

  const std::string& str() const { return text_; }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += "\n";
  }

  // Waits are hatched, so that they are told from idle and from work without colour.
  static std::string_view fill_of(std::size_t paint) {
    return paint == internal::kWaitPaint ? "url(#wait)" : kPaints[paint].fill;
  }

  static double y_of(std::size_t row) { return kTop + kRowHeight * static_cast<double>(row); }

  void rectangle(const TraceEvent& event, std::size_t row, double start_s, double end_s,
                 std::size_t paint) {
    start_s = std::max(start_s, window_.start_s);
    end_s = std::min(end_s, window_.end_s);
    if (end_s <= start_s) {
      return;
    }
    used_[paint] = true;
    const double x = left_ + width_ * (start_s - window_.start_s) / window_.length_s();
    const double width = width_ * (end_s - start_s) / window_.length_s();
    // Messages lie under what is computed meanwhile, as a strip.
    const bool strip = paint == internal::kTransferPaint;
    const double height = strip ? kBoxHeight / 3 : kBoxHeight;
    const double y = y_of(row) + (strip ? kBoxHeight - height : 0);
    add(R"(<rect class="action" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" fill="{}">)"
        R"(<title>{}{}, {} from {}</title></rect>)",
        x, y, width, height, fill_of(paint), internal::escape_markup(to_string(event.action)),
        paint == internal::kWaitPaint ? " waits" : "", format_seconds(end_s - start_s),
        format_seconds(start_s));
    const std::string label = box_text(event.action);
    if (!strip && paint != internal::kWaitPaint &&
        width >= kLetterWidth * static_cast<double>(label.size()) + 4) {
      add(R"(<text class="box" x="{:.1f}" y="{:.1f}" style="fill: {}">{}</text>)", x + width / 2,
          y + 16, kPaints[paint].ink, internal::escape_markup(label));
    }
  }

  TimeWindow window_;
  double left_;
  double width_;
  double bottom_;
  std::array<bool, kPaints.size()> used_{};
  std::string text_;
};

}  // namespace

std::string timeline_svg(const Trace& trace, const std::string& title) {
  const bool cut = internal::num_events(trace) > kMostEvents;
  const TimeWindow window =
      cut ? internal::steady_window(trace, kStepsWhenCut) : internal::whole_trace(trace);
  std::string heading = title;
  if (cut && window.num_steps > 0) {
    heading += fmt::format(" (steps {} to {})", window.first_step + 1,
                           window.first_step + window.num_steps);
  }

  std::vector<std::string> labels;
  std::size_t longest = 0;
  for (const RankTrace& rank : trace.ranks) {
    labels.push_back(fmt::format("rank {}, {}", rank.rank, describe_stages(rank.stages)));
    longest = std::max(longest, labels.back().size());
  }
  const double left = 20 + kLetterWidth * static_cast<double>(longest);
  const double width = chart_width(trace, window);

  Chart chart(trace, window, left, width);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    chart.background_row(row, labels[row]);
  }
  chart.axis(internal::unit_for(window.length_s()));
  for (std::size_t row = 0; row < labels.size(); ++row) {
    // Messages first, so that what is computed lies over them.
    for (bool transfers : {true, false}) {
      for (const TraceEvent& event : trace.ranks[row].events) {
        if ((internal::paint_of(event.action.kind) == internal::kTransferPaint) == transfers) {
          chart.box(event, row);
        }
      }
    }
  }
  chart.legend();

  return fmt::format(
      R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">
<title>{2}</title>
<style>
text {{ font: 12px sans-serif; fill: #333 }}
.idle {{ fill: #eef0f3 }}
.tick {{ stroke: #d5d9df; fill: none }}
.axis {{ text-anchor: middle; fill: #666 }}
.box {{ text-anchor: middle }}
.action {{ stroke: #fff; stroke-width: 0.6 }}
</style>
<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="5" height="5" fill="#eef0f3"/><rect width="1.2" height="5" fill="#aab1bc"/></pattern>
<rect width="100%" height="100%" fill="#fff"/>
<text x="8" y="20" style="font-weight: bold">{2}</text>
{3}</svg>
)svg",
      left + width + 40, chart.bottom() + 48, internal::escape_markup(heading), chart.str());
}

}  // namespace millrace
