#include "millrace/report/internal/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/escape.h"
#include "millrace/report/internal/paint.h"
#include "millrace/report/internal/shades.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/internal/steady.h"

namespace millrace::internal {
namespace {

// A longer trace is cut to steps of its middle, so many that about kEventsWhenCut boxes are left.
constexpr std::size_t kMostEvents = 6000;
constexpr std::size_t kEventsWhenCut = 1500;
constexpr int64_t kMostStepsWhenCut = 16;
constexpr double kLanePitch = 28;
constexpr double kBoxHeight = 24;
constexpr double kTop = 22;           // above the first lane: heads of the columns
constexpr double kBottom = 24;        // below the last lane: the axis
constexpr double kLetterWidth = 6.8;  // of the 12 px font
constexpr double kDigitWidth = 6.2;   // of the numbers' font
constexpr double kSlotWidth = 22;
constexpr double kLeastPlot = 480;
constexpr double kMostPlot = 1600;

double y_of(std::size_t lane) { return kTop + kLanePitch * static_cast<double>(lane); }

template <typename... Args>
void add(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

// At most two decimals, none that say nothing.
std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') {
    text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

double text_width(const std::string& text) {
  return kLetterWidth * static_cast<double>(text.size());
}

// Distance between axis ticks: 1, 2 or 5 times a power of ten, about `target`.
double tick_step(double target) {
  const double power = std::pow(10.0, std::floor(std::log10(target)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= target) {
      return factor * power;
    }
  }
  return 10 * power;
}

// Most (stage, microbatch) pairs of a rank whose F began and whose B, or W, has not ended.
int64_t peak_stash(const RankTrace& rank) {
  std::vector<std::pair<double, int64_t>> changes;
  for (const TraceEvent& event : rank.events) {
    const int64_t parts = event.action.num_microbatches();
    if (event.action.kind == ActionKind::kForward) {
      changes.emplace_back(event.start_s, parts);
    } else if (event.action.kind == ActionKind::kBackward ||
               event.action.kind == ActionKind::kWeightGradient) {
      changes.emplace_back(event.end_s, -parts);
    }
  }
  std::sort(changes.begin(), changes.end());  // at one time what goes makes place first
  int64_t now = 0;
  int64_t peak = 0;
  for (const auto& [time_s, change] : changes) {
    now += change;
    peak = std::max(peak, now);
  }
  return peak;
}

// From the first to the last computation that is drawn: what bubbles are a share of.
TimeWindow computing(const Trace& trace, TimeWindow drawn) {
  TimeWindow window = drawn;
  bool any = false;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) {
      if (is_compute(event.action.kind) && event.end_s > drawn.start_s &&
          event.start_s < drawn.end_s) {
        const double start_s = std::max(event.start_s, drawn.start_s);
        const double end_s = std::min(event.end_s, drawn.end_s);
        window.start_s = any ? std::min(window.start_s, start_s) : start_s;
        window.end_s = any ? std::max(window.end_s, end_s) : end_s;
        any = true;
      }
    }
  }
  return window;
}

double busy_in(const RankTrace& rank, TimeWindow window) {
  double sum_s = 0;
  for (const TraceEvent& event : rank.events) {
    if (is_compute(event.action.kind)) {
      sum_s += std::max(
          0.0, std::min(event.end_s, window.end_s) - std::max(event.start_s, window.start_s));
    }
  }
  return sum_s;
}

// Microbatches as they stand in a box: "7", "0-3"; of an update its name.
std::string box_text(const Action& action) {
  if (!is_compute(action.kind)) {
    return to_string(action.kind);
  }
  return action.first == action.last ? fmt::format("{}", action.first)
                                     : fmt::format("{}-{}", action.first, action.last);
}

double edge_of(double box_width) { return std::clamp((box_width - 1) / 8, 0.0, 0.7); }

class Drawing {
 public:
  Drawing(const Trace& trace, TraceClock clock, bool scalable)
      : trace_(trace), slots_(clock == TraceClock::kSlots), scalable_(scalable), shades_(trace) {
    const std::size_t boxes = num_boxes();
    window_ = whole_trace(trace);
    if (boxes > kMostEvents) {
      const TimeWindow one = steady_window(trace, 1);
      const std::size_t of_one = std::max<std::size_t>(1, num_boxes_in(one));
      cut_ = steady_window(trace, std::clamp<int64_t>(static_cast<int64_t>(kEventsWhenCut / of_one),
                                                      1, kMostStepsWhenCut));
      if (cut_.length_s() < window_.length_s()) {
        window_ = cut_;
      } else {
        cut_ = {};
      }
    }
    figure_.height = y_of(trace.ranks.size()) + kBottom;
    figure_.plot_width = plot_width();
  }

  Figure draw(const std::string& title) {
    std::string heading = title;
    if (cut_.num_steps > 0) {
      heading += cut_.num_steps == 1 ? fmt::format(" (step {})", cut_.first_step + 1)
                                     : fmt::format(" (steps {} to {})", cut_.first_step + 1,
                                                   cut_.first_step + cut_.num_steps);
    }
    figure_.heading = escape_markup(heading);
    draw_labels();
    draw_lanes();
    draw_facts();
    draw_legend();
    // An edge must not eat up its box.
    figure_.narrowest = narrowest_;
    add(figure_.style, ".x path {{ stroke-width: {} }}\n", px(edge_of(narrowest_)));
    for (const auto& [paint_and_shade, used] : used_) {
      const auto& [paint, shade] = paint_and_shade;
      const Colours colours = colours_of(paint, shade, shades_of(paint));
      add(figure_.style, ".{0} {{ fill: {1} }}\n.n .{0} {{ fill: {2} }}\n", name_of(paint, shade),
          paint == kWaitPaint ? "url(#wait)" : colours.fill, colours.ink);
    }
    return std::move(figure_);
  }

 private:
  // Of slots, messages and waits take no time or are idle time: only work is drawn.
  bool is_drawn(const TraceEvent& event) const {
    return event.end_s > event.start_s && (!slots_ || is_compute(event.action.kind));
  }
  std::size_t num_boxes() const {
    return num_boxes_in(
        {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), 0, 0});
  }
  std::size_t num_boxes_in(TimeWindow window) const {
    std::size_t count = 0;
    for (const RankTrace& rank : trace_.ranks) {
      count += static_cast<std::size_t>(
          std::count_if(rank.events.begin(), rank.events.end(), [&](const TraceEvent& event) {
            return is_drawn(event) && event.end_s > window.start_s && event.start_s < window.end_s;
          }));
    }
    return count;
  }

  // Wide enough that the shortest computation holds its number, within reason.
  double plot_width() const {
    double shortest_s = window_.length_s();
    for (const RankTrace& rank : trace_.ranks) {
      for (const TraceEvent& event : rank.events) {
        if (is_compute(event.action.kind) && event.end_s > event.start_s) {
          shortest_s =
              std::min(shortest_s, (event.end_s - event.start_s) /
                                       static_cast<double>(std::max<int64_t>(
                                           1, slots_ ? event.action.num_microbatches() : 1)));
        }
      }
    }
    return shortest_s > 0
               ? std::clamp(kSlotWidth * window_.length_s() / shortest_s, kLeastPlot, kMostPlot)
               : kLeastPlot;
  }

  double x_of(double time_s) const {
    return window_.length_s() > 0
               ? figure_.plot_width * (time_s - window_.start_s) / window_.length_s()
               : 0;
  }

  std::string duration(double time_s) const {
    return slots_ ? fmt::format("{:.6g}", time_s) : format_seconds(time_s);
  }

  int shades_of(std::size_t paint) const { return paint < kNumComputePaints ? shades_.size() : 1; }
  static std::string name_of(std::size_t paint, int shade) {
    return fmt::format("{}{}", kPaints[paint].letter == '.' ? 'x' : kPaints[paint].letter, shade);
  }

  void draw_labels() {
    double width = 0;
    for (std::size_t lane = 0; lane < trace_.ranks.size(); ++lane) {
      const RankTrace& rank = trace_.ranks[lane];
      // Few stages in full; many in short.
      std::string stages = describe_stages(rank.stages);
      if (stages.size() > 20) {
        stages = stage_ranges(rank.stages, 20);
      }
      const std::string label = fmt::format("rank {}, {}", rank.rank, stages);
      width = std::max(width, text_width(label));
      add(figure_.labels, "<text x=\"0\" y=\"{}\">{}</text>\n", px(y_of(lane) + 16),
          escape_markup(label));
    }
    figure_.label_width = std::ceil(width + 8);
  }

  void draw_lanes() {
    std::string& plot = figure_.plot;
    plot += "<g class=\"x\">\n";
    for (std::size_t lane = 0; lane < trace_.ranks.size(); ++lane) {
      add(plot, "<rect class=\"idle\" x=\"0\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
          px(y_of(lane)), px(figure_.plot_width), kBoxHeight);
    }
    plot += "</g>\n";
    draw_axis();
    for (std::size_t lane = 0; lane < trace_.ranks.size(); ++lane) {
      numbers_.clear();
      add(plot, "<g transform=\"translate(0 {})\">\n<g class=\"x\">\n", px(y_of(lane)));
      // Messages first, so that what is computed lies over them.
      for (const bool transfers : {true, false}) {
        for (const TraceEvent& event : trace_.ranks[lane].events) {
          if (is_drawn(event) && (paint_of(event.action.kind) == kTransferPaint) == transfers) {
            draw_event(trace_.ranks[lane], event);
          }
        }
      }
      draw_updates(trace_.ranks[lane]);
      add(plot, "</g>\n<g class=\"n\" transform=\"translate(0 16)\">\n{}</g>\n</g>\n", numbers_);
    }
  }

  void draw_event(const RankTrace& rank, const TraceEvent& event) {
    const double wait_end_s = std::min(event.end_s, event.start_s + event.wait_s);
    box(rank, event, event.start_s, wait_end_s, kWaitPaint);
    box(rank, event, wait_end_s, event.end_s, paint_of(event.action.kind));
  }

  void box(const RankTrace& rank, const TraceEvent& event, double start_s, double end_s,
           std::size_t paint) {
    const double from_s = std::max(start_s, window_.start_s);
    const double to_s = std::min(end_s, window_.end_s);
    if (to_s <= from_s) {
      return;
    }
    const int shade = paint < kNumComputePaints ? shades_.of(rank, event.action) : 0;
    used_[{paint, shade}] = true;
    const std::string name = name_of(paint, shade);
    const double x = x_of(from_s);
    const double width = x_of(to_s) - x;
    if (paint < kNumComputePaints) {
      narrowest_ = std::min(narrowest_, width);
    }
    // Messages lie under what is computed meanwhile, as a strip.
    const bool strip = paint == kTransferPaint;
    const double height = strip ? kBoxHeight / 3 : kBoxHeight;
    add(figure_.plot,
        R"(<path class="{}" d="M{} {}h{}v{}h-{}z"><title>{}{}, {} from {}</title></path>)", name,
        px(x), px(kBoxHeight - height), px(width), px(height), px(width),
        escape_markup(to_string(event.action)), paint == kWaitPaint ? " waits" : "",
        duration(end_s - start_s), duration(start_s));
    figure_.plot += "\n";
    const std::string text = box_text(event.action);
    if (!strip && paint != kWaitPaint && (scalable_ || width >= width_of_number(text.size()))) {
      add(numbers_, R"(<text class="{}" x="{}"{}>{}</text>)", name, px(x + width / 2),
          scalable_ ? fmt::format(" data-w=\"{}\"", px(width)) : "", text);
      numbers_ += "\n";
    }
  }

  // Where several steps follow each other: a line at the end of each update.
  void draw_updates(const RankTrace& rank) {
    std::map<int, int> of_stage;
    for (const TraceEvent& event : rank.events) {
      of_stage[event.action.stage] += event.action.kind == ActionKind::kStep ? 1 : 0;
    }
    std::set<std::string> drawn;
    for (const TraceEvent& event : rank.events) {
      if (event.action.kind != ActionKind::kStep || of_stage[event.action.stage] < 2 ||
          event.end_s < window_.start_s || event.end_s > window_.end_s) {
        continue;
      }
      const std::string x = px(x_of(event.end_s));
      if (drawn.insert(x).second) {
        add(figure_.plot, "<path class=\"step\" d=\"M{} -2v{}\"/>\n", x, kBoxHeight + 4);
        has_updates_ = true;
      }
    }
  }

  void draw_axis() {
    const TimeUnit unit = slots_ ? TimeUnit{1, "slots"} : unit_for(window_.length_s());
    const double length = window_.length_s() / unit.in_seconds;
    if (length <= 0) {
      return;
    }
    double step = tick_step(length * 60 / figure_.plot_width);
    step = slots_ ? std::max(step, 1.0) : step;
    const double bottom = y_of(trace_.ranks.size());
    std::string numbers;
    figure_.plot += "<g class=\"x\">\n";
    for (int i = 0; step * i <= length * (1 + 1e-9); ++i) {
      const double x = figure_.plot_width * step * i / length;
      add(figure_.plot, "<path class=\"tick\" d=\"M{} {}V{}\"/>\n", px(x), kTop - 4, px(bottom));
      const char* end = i == 0                        ? " class=\"first\""
                        : x > figure_.plot_width - 12 ? " class=\"last\""
                                                      : "";
      add(numbers, "<text x=\"{}\" y=\"{}\"{}>{:g}</text>\n", px(x), px(bottom + 14), end,
          step * i);
    }
    add(figure_.plot, "</g>\n<g class=\"axis\">\n{}</g>\n", numbers);
    axis_unit_ = std::string(unit.name);
  }

  void draw_facts() {
    const TimeWindow window = computing(trace_, window_);
    double busy_s = 0;
    int used = 0;
    std::string& facts = figure_.facts;
    constexpr double kBubbleRight = 62;
    constexpr double kStashRight = 110;
    add(facts, "<text class=\"head\" x=\"{}\" y=\"12\">bubble</text>\n", kBubbleRight);
    add(facts, "<text class=\"head\" x=\"{}\" y=\"12\">stash</text>\n", kStashRight);
    for (std::size_t lane = 0; lane < trace_.ranks.size(); ++lane) {
      const RankTrace& rank = trace_.ranks[lane];
      const double rank_busy_s = busy_in(rank, window);
      busy_s += rank_busy_s;
      used += rank.events.empty() ? 0 : 1;
      const std::string y = px(y_of(lane) + 16);
      add(facts, "<text class=\"fact\" x=\"{}\" y=\"{}\">{}</text>\n", kBubbleRight, y,
          window.length_s() > 0
              ? fmt::format("{:.1f}%", 100 * (1 - rank_busy_s / window.length_s()))
              : "-");
      add(facts, "<text class=\"fact\" x=\"{}\" y=\"{}\">{}</text>\n", kStashRight, y,
          peak_stash(rank));
    }
    if (!axis_unit_.empty()) {
      add(facts, "<text class=\"unit\" x=\"8\" y=\"{}\">{}</text>\n",
          px(y_of(trace_.ranks.size()) + 14), axis_unit_);
    }
    figure_.facts_width = kStashRight + 8;
    if (used > 0 && window.length_s() > 0) {
      figure_.summary =
          escape_markup(fmt::format("{}: bubble {:.1f}% of {}{}", trace_.source,
                                    100 * (1 - busy_s / (used * window.length_s())),
                                    duration(window.length_s()), slots_ ? " slots" : ""));
    } else {
      figure_.summary = escape_markup(trace_.source + ": nothing was computed");
    }
  }

  // Items in lines of at most the figure's width.
  class Legend {
   public:
    explicit Legend(double most_width) : most_width_(most_width) {}
    // `marks` begin at x = 0 and are `marks_width` wide.
    void item(const std::string& marks, double marks_width, const std::string& text) {
      const double width = marks_width + 5 + text_width(text) + 14;
      if (x_ > 0 && x_ + width > most_width_) {
        new_line();
      }
      add(markup_, "<g transform=\"translate({} {})\">{}<text x=\"{}\" y=\"11\">{}</text></g>\n",
          px(x_), px(y_), marks, px(marks_width > 0 ? marks_width + 5 : 0), escape_markup(text));
      x_ += width;
      width_ = std::max(width_, x_);
    }
    void new_line() {
      if (x_ > 0) {
        x_ = 0;
        y_ += 20;
      }
    }
    double width() const { return width_; }
    double height() const { return y_ + (x_ > 0 ? 20 : 0); }
    const std::string& str() const { return markup_; }

   private:
    double most_width_;
    double x_ = 0;
    double y_ = 0;
    double width_ = 0;
    std::string markup_;
  };

  static std::string swatch(double x, const std::string& name) {
    return fmt::format("<rect class=\"{}\" x=\"{}\" y=\"0\" width=\"14\" height=\"14\"/>", name,
                       px(x));
  }

  void draw_legend() {
    Legend legend(figure_.label_width + figure_.plot_width + figure_.facts_width);
    std::vector<std::size_t> computing_paints;
    for (std::size_t paint = 0; paint < kPaints.size(); ++paint) {
      std::string marks;
      double width = 0;
      for (int shade = 0; shade < shades_of(paint); ++shade) {
        if (used_.contains({paint, shade})) {
          marks += swatch(width, name_of(paint, shade));
          width += 15;
        }
      }
      if (width > 0) {
        const bool letter = paint < kNumComputePaints;
        legend.item(marks, width,
                    letter ? fmt::format("{} ({})", kPaints[paint].name, kPaints[paint].letter)
                           : std::string(kPaints[paint].name));
        if (letter) {
          computing_paints.push_back(paint);
        }
      }
    }
    legend.item("<rect class=\"idle\" x=\"0\" y=\"0\" width=\"14\" height=\"14\"/>", 14, "idle");
    if (has_updates_) {
      legend.item("<path class=\"step\" d=\"M7 -1v16\"/>", 14, "update, border of a step");
    }
    legend.new_line();
    for (int shade = 0; shades_.size() > 1 && shade < shades_.size(); ++shade) {
      std::string marks;
      double width = 0;
      for (const std::size_t paint : computing_paints) {
        marks += swatch(width, name_of(paint, shade));
        used_[{paint, shade}] = true;  // its colour
        width += 15;
      }
      legend.item(marks, width, shades_.name(shade));
    }
    legend.new_line();
    legend.item("", 0,
                "numbers: microbatches; bubble: idle share; stash: most (stage, microbatch) pairs "
                "kept for a backward");
    figure_.legend = legend.str();
    figure_.legend_width = legend.width();
    figure_.legend_height = legend.height();
  }

  const Trace& trace_;
  bool slots_;
  bool scalable_;
  Shades shades_;
  TimeWindow window_;
  TimeWindow cut_;  // no steps: the whole trace is drawn
  Figure figure_;
  std::map<std::pair<std::size_t, int>, bool> used_;  // paint and shade
  std::string numbers_;                               // of the lane being drawn
  std::string axis_unit_;
  bool has_updates_ = false;
  double narrowest_ = kMostPlot;  // computation that is drawn
};

}  // namespace

const char* const kFigureStyle =
    R"(text { font: 12px Helvetica, Arial, sans-serif; fill: #24292f }
.n text { font-size: 11px; text-anchor: middle }
.idle { fill: #eff0f2 }
.tick { stroke: #d0d5dc; fill: none }
.axis text { text-anchor: middle; fill: #57606a }
.axis .first { text-anchor: start }
.axis .last { text-anchor: end }
.unit { fill: #57606a }
.head { text-anchor: end; fill: #57606a; font-size: 11px }
.fact { text-anchor: end; font-variant-numeric: tabular-nums }
.summary { fill: #57606a }
.x path { stroke: #fff }
.x .tick { stroke: #d0d5dc; stroke-width: 1 }
.x .step, .step { stroke: #111; stroke-width: 2; fill: none }
)";

const char* const kFigureDefinitions =
    R"svg(<defs><pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" fill="#e3e6ea"/><rect width="1.2" height="5" fill="#8d96a3"/></pattern></defs>
)svg";

double width_of_number(std::size_t digits) { return kDigitWidth * static_cast<double>(digits) + 2; }

Figure draw_figure(const Trace& trace, const std::string& title, TraceClock clock, bool scalable) {
  return Drawing(trace, clock, scalable).draw(title);
}

}  // namespace millrace::internal
