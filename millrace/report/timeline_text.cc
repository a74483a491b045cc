#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/paint.h"
#include "millrace/report/internal/steady.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

using internal::kPaints;
using internal::TimeWindow;

// So many columns let an action be seen beside its neighbours.
constexpr int64_t kColumnsPerAction = 3;
constexpr int64_t kMostSteps = 6;

// Seconds that each paint takes of each column of one rank's row.
class Row {
 public:
  Row(TimeWindow window, std::size_t columns)
      : window_(window),
        column_s_(window.length_s() / static_cast<double>(columns)),
        shares_(columns) {}

  void add(double start_s, double end_s, std::size_t paint) {
    const double from_s = std::max(start_s, window_.start_s) - window_.start_s;
    const double to_s = std::min(end_s, window_.end_s) - window_.start_s;
    if (column_s_ <= 0 || from_s >= to_s) {
      return;
    }
    const auto last = shares_.size() - 1;
    const auto begin = std::min(last, static_cast<std::size_t>(from_s / column_s_));
    const auto end = std::min(last, static_cast<std::size_t>(to_s / column_s_));
    for (std::size_t c = begin; c <= end; ++c) {
      const double left_s = column_s_ * static_cast<double>(c);
      shares_[c][paint] +=
          std::max(0.0, std::min(to_s, left_s + column_s_) - std::max(from_s, left_s));
    }
  }

  // A column's letter is that of the largest share; a blank where at least half of it was idle.
  std::string str() const {
    std::string text;
    for (const auto& share : shares_) {
      double sum_s = 0;
      for (double seconds : share) {
        sum_s += seconds;
      }
      const auto largest = std::max_element(share.begin(), share.end());
      const auto paint = static_cast<std::size_t>(largest - share.begin());
      text += sum_s * 2 <= column_s_ ? ' ' : kPaints[paint].letter;
    }
    return text;
  }

 private:
  TimeWindow window_;
  double column_s_;
  std::vector<std::array<double, kPaints.size()>> shares_;
};

// As many steps of the steady part as leave the busiest rank's actions wide enough to be seen.
TimeWindow choose_window(const Trace& trace, int64_t columns) {
  const TimeWindow one = internal::steady_window(trace, 1);
  int64_t most = 1;
  for (const RankTrace& rank : trace.ranks) {
    most = std::max<int64_t>(
        most, std::count_if(rank.events.begin(), rank.events.end(), [&](const TraceEvent& event) {
          return is_compute(event.action.kind) && event.end_s > one.start_s &&
                 event.start_s < one.end_s;
        }));
  }
  return internal::steady_window(
      trace, std::clamp<int64_t>(columns / (kColumnsPerAction * most), 1, kMostSteps));
}

// Words joined to lines of at most `columns`, every line but the first indented.
std::string wrapped(const std::vector<std::string>& words, std::size_t columns) {
  std::string text;
  std::size_t length = 0;
  for (const std::string& word : words) {
    if (length > 0 && length + 2 + word.size() > columns) {
      text += "\n  ";
      length = 2;
    } else if (length > 0) {
      text += "  ";
      length += 2;
    }
    text += word;
    length += word.size();
  }
  return text + "\n";
}

}  // namespace

std::string timeline_text(const Trace& trace, int columns) {
  const auto width = static_cast<std::size_t>(std::max(columns, 40));
  std::vector<std::string> labels;
  std::size_t label_width = 0;
  for (const RankTrace& rank : trace.ranks) {
    labels.push_back(fmt::format("rank {} {}", rank.rank, describe_stages(rank.stages)));
    label_width = std::max(label_width, labels.back().size());
  }
  if (internal::num_events(trace) == 0) {
    return fmt::format("{}: no actions were recorded\n", trace.source);
  }

  const std::size_t chart = width - label_width - 3;  // " |" before, "|" after
  const TimeWindow window = choose_window(trace, static_cast<int64_t>(chart));
  std::string text;
  std::array<bool, kPaints.size()> used{};
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    Row row(window, chart);
    for (const TraceEvent& event : trace.ranks[r].events) {
      // Where in an action its wait lies is not recorded; most waits come first.
      row.add(event.start_s, event.start_s + event.wait_s, internal::kWaitPaint);
      row.add(event.start_s + event.wait_s, event.end_s, internal::paint_of(event.action.kind));
    }
    const std::string drawn = row.str();
    for (std::size_t p = 0; p < kPaints.size(); ++p) {
      used[p] = used[p] || drawn.find(kPaints[p].letter) != std::string::npos;
    }
    text += fmt::format("{:<{}} |{}|\n", labels[r], label_width, drawn);
  }

  std::string place = trace.source;
  if (window.num_steps == 1) {
    place += fmt::format(", step {}", window.first_step + 1);
  } else if (window.num_steps > 1) {
    place += fmt::format(", steps {} to {}", window.first_step + 1,
                         window.first_step + window.num_steps);
  }
  std::vector<std::string> words = {
      fmt::format("{}: {}", place, format_seconds(window.length_s())),
      fmt::format("column {}", format_seconds(window.length_s() / static_cast<double>(chart)))};
  for (std::size_t p = 0; p < kPaints.size(); ++p) {
    if (used[p]) {
      words.push_back(fmt::format("{} {}", kPaints[p].letter, kPaints[p].name));
    }
  }
  words.emplace_back("blank idle");
  return text + wrapped(words, width);
}

}  // namespace millrace
