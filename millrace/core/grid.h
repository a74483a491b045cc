// The time-by-rank grid as text: the picture that schedule findings, `millrace schedule` and
// `simulate` print.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/core/action.h"
#include "millrace/core/trace.h"

namespace millrace {

// A cell to mark with '>' ... '<' brackets: action `index` of `rank`.
struct GridMark {
  int rank = 0;
  std::size_t index = 0;
};

// Actions in order, one row a rank, one column an action (no times known): for findings.
std::string order_grid(const ActionLists& lists, const std::vector<GridMark>& marks = {},
                       std::size_t max_columns = 40);

// Compute actions by time, `slot_s` a column; idle is '.'; a multi-slot action repeats its cell's
// fill. Rows are cut at `max_columns` with an ellipsis.
std::string time_grid(const Trace& trace, double slot_s, std::size_t max_columns = 100);

}  // namespace millrace
