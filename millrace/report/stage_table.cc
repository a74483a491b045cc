#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

using internal::StageRow;
using internal::TimeUnit;
using Cells = std::vector<std::string>;

constexpr std::size_t kNumPlanColumns = 3;
constexpr std::size_t kNumTimeColumns = 5;
constexpr std::array<const char*, kNumTimeColumns> kTimeColumns = {"compute", "comm", "wait",
                                                                   "update", "busy"};

void add_times(Cells& cells, const std::optional<StageTimes>& times, TimeUnit unit) {
  if (!times) {
    cells.insert(cells.end(), kNumTimeColumns, "-");
    return;
  }
  for (double seconds : {times->compute_s, times->communicate_s, times->wait_s, times->update_s,
                         internal::busy_s(*times)}) {
    cells.push_back(internal::in_unit(seconds, unit));
  }
}

// Right-aligned columns; those that begin a group stand two blanks off, the others one.
std::string lay_out(const std::vector<Cells>& lines, const std::vector<std::string>& groups) {
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (const Cells& cells : lines) {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      widths[c] = std::max(widths[c], cells[c].size());
    }
  }
  const auto gap_before = [](std::size_t c) -> std::size_t {
    const bool begins_group = c >= kNumPlanColumns && (c - kNumPlanColumns) % kNumTimeColumns == 0;
    return c == 0 ? 0 : begins_group ? 2 : 1;
  };

  // The groups' titles, each centred between dashes over its columns.
  std::string text;
  std::size_t c = 0;
  for (; c < kNumPlanColumns; ++c) {
    text.append(gap_before(c) + widths[c], ' ');
  }
  for (const std::string& group : groups) {
    std::size_t width = 0;
    text.append(gap_before(c), ' ');
    for (std::size_t i = 0; i < kNumTimeColumns; ++i, ++c) {
      width += widths[c] + (i == 0 ? 0 : gap_before(c));
    }
    text += fmt::format("{:-^{}}", " " + group + " ", width);
  }
  text = groups.empty() ? "" : text + "\n";

  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text.append(gap_before(i), ' ');
      text += fmt::format("{:>{}}", cells[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string step_row(const Trace* predicted, const Trace* measured) {
  Cells parts;
  if (predicted != nullptr) {
    parts.push_back("predicted " + format_seconds(predicted->step_s));
  }
  if (measured != nullptr) {
    parts.push_back("measured " + format_seconds(measured->step_s));
  }
  std::string text = "step: " + join(parts, ", ");
  if (parts.size() == 2) {
    text += ", difference " + internal::difference(predicted->step_s, measured->step_s);
  }
  return text + "\n";
}

}  // namespace

std::string stage_table(const Plan& plan, const Trace& predicted, const Trace& measured) {
  const Trace* left = predicted.ranks.empty() ? nullptr : &predicted;
  const Trace* right = measured.ranks.empty() ? nullptr : &measured;
  const std::vector<StageRow> rows = internal::stage_rows(plan, left, right);
  const TimeUnit unit = internal::unit_for(rows);

  std::vector<std::string> groups;
  Cells header = {"stage", "layers", "ranks"};
  const auto add_group = [&](const char* name) {
    groups.push_back(fmt::format("{}, {} a step", name, unit.name));
    header.insert(header.end(), kTimeColumns.begin(), kTimeColumns.end());
  };
  if (left != nullptr) {
    add_group("predicted");
  }
  if (right != nullptr) {
    add_group("measured");
  }
  if (groups.size() == 2) {
    header.emplace_back("diff");
  }

  std::vector<Cells> lines = {header};
  for (const StageRow& row : rows) {
    Cells cells = {internal::stage_ranges(row.stages, 9), fmt::format("{}", row.layers.size()),
                   internal::rank_ranges(row.ranks, 9)};
    if (left != nullptr) {
      add_times(cells, row.predicted, unit);
    }
    if (right != nullptr) {
      add_times(cells, row.measured, unit);
    }
    if (groups.size() == 2) {
      cells.push_back(row.predicted && row.measured
                          ? internal::difference(internal::busy_s(*row.predicted),
                                                 internal::busy_s(*row.measured))
                          : "-");
    }
    lines.push_back(std::move(cells));
  }

  std::string text = lay_out(lines, groups);
  if (const std::vector<int> idle = internal::idle_ranks(plan); !idle.empty()) {
    text += fmt::format("idle: {}\n", internal::rank_ranges(idle, 60));
  }
  if (!groups.empty()) {
    text += step_row(left, right);
  }
  return text;
}

}  // namespace millrace
