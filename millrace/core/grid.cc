#include "millrace/core/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

using Row = std::vector<std::string>;

// Rows of cells, each column as wide as its widest cell (or as `width` when that is set), each row
// behind its rank's name. `more` says which rows go on beyond the last column.
std::string draw(const std::vector<int>& ranks, const std::vector<Row>& rows, bool skipped,
                 const std::vector<bool>& more, std::size_t width = 0) {
  std::vector<std::size_t> widths;
  std::size_t label_width = 0;
  std::vector<std::string> labels;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    widths.resize(std::max(widths.size(), rows[r].size()), width);
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
    }
    labels.push_back(fmt::format("rank {}", ranks[r]));
    label_width = std::max(label_width, labels.back().size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line = fmt::format("{:<{}} |", labels[r], label_width);
    line += skipped ? " ..." : "";
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      line += fmt::format(" {:<{}}", rows[r][c], widths[c]);
    }
    line += more[r] ? " ..." : "";
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string cell_text(Action action) {
  // Versions and peers would make the columns too wide for a picture.
  action.version = kNone;
  action.peer = kNone;
  return to_string(action);
}

}  // namespace

std::string order_grid(const ActionLists& lists, const std::vector<GridMark>& marks,
                       std::size_t max_columns) {
  MILLRACE_CHECK(max_columns >= 1, "a grid needs a column");
  // When the first mark lies beyond the columns, the window moves there.
  std::size_t begin = 0;
  if (!marks.empty()) {
    const std::size_t first =
        std::min_element(marks.begin(), marks.end(), [](const GridMark& a, const GridMark& b) {
          return a.index < b.index;
        })->index;
    if (first >= max_columns) {
      begin = first - max_columns / 2;
    }
  }
  std::vector<int> ranks;
  std::vector<Row> rows;
  std::vector<bool> more;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    const int rank = static_cast<int>(r);
    const std::size_t end = std::min(lists[r].size(), begin + max_columns);
    Row row;
    for (std::size_t i = begin; i < end; ++i) {
      const bool marked = std::any_of(marks.begin(), marks.end(), [&](const GridMark& mark) {
        return mark.rank == rank && mark.index == i;
      });
      const std::string text = to_string(lists[r][i]);
      row.push_back(marked ? ">" + text + "<" : marks.empty() ? text : " " + text + " ");
    }
    ranks.push_back(rank);
    rows.push_back(std::move(row));
    more.push_back(end < lists[r].size());
  }
  return draw(ranks, rows, begin > 0, more);
}

std::string time_grid(const Trace& trace, double slot_s, std::size_t max_columns) {
  MILLRACE_CHECK(slot_s > 0 && max_columns >= 1, "a grid needs a column and a slot's length");
  // Times are sums of rounded numbers; what ends a hair behind a border does not use the next slot.
  constexpr double kHair = 1e-6;
  std::vector<int> ranks;
  std::vector<Row> rows;
  std::vector<bool> more;
  std::size_t widest = 1;
  std::size_t columns = 0;
  for (const RankTrace& rank : trace.ranks) {
    Row row;
    std::vector<bool> is_head;
    bool cut = false;
    for (const TraceEvent& event : rank.events) {
      if (!is_compute(event.action.kind)) {
        continue;
      }
      const double first = std::floor(event.start_s / slot_s + kHair);
      const double last = std::max(first + 1, std::ceil(event.end_s / slot_s - kHair));
      cut = cut || last > static_cast<double>(max_columns);
      const std::string text = cell_text(event.action);
      const double stop = std::min(last, static_cast<double>(max_columns));
      for (double at = first; at < stop; at += 1) {
        const auto column = static_cast<std::size_t>(at);
        if (column >= row.size()) {
          row.resize(column + 1, ".");
          is_head.resize(column + 1, false);
        }
        if (is_head[column]) {
          continue;  // two actions share a slot: the earlier keeps it
        }
        is_head[column] = at == first;
        row[column] = at == first ? text : std::string("-");
        widest = std::max(widest, row[column].size());
      }
    }
    columns = std::max(columns, row.size());
    ranks.push_back(rank.rank);
    rows.push_back(std::move(row));
    more.push_back(cut);
  }
  for (Row& row : rows) {
    row.resize(columns, ".");
    for (std::string& cell : row) {
      if (cell == "-") {
        cell.assign(widest, '-');
      }
    }
  }
  return draw(ranks, rows, false, more, widest);
}

}  // namespace millrace
