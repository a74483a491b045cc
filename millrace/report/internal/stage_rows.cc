#include "millrace/report/internal/stage_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

// Grows `rows` to reach `stage`, so that stages unknown to the plan have a row too.
StageRow& row_of(std::vector<StageRow>& rows, int stage) {
  while (static_cast<int>(rows.size()) <= stage) {
    StageRow row;
    row.stage = static_cast<int>(rows.size());
    rows.push_back(row);
  }
  return rows[static_cast<std::size_t>(stage)];
}

void add_times(std::vector<StageRow>& rows, const Trace* trace,
               std::optional<StageTimes> StageRow::*side) {
  if (trace == nullptr) {
    return;
  }
  for (const StageTimes& times : stage_times(*trace)) {
    if (times.stage >= 0) {
      row_of(rows, times.stage).*side = times;
    }
  }
}

}  // namespace

std::vector<StageRow> stage_rows(const Plan& plan, const Trace* predicted, const Trace* measured) {
  std::vector<StageRow> rows;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
    StageRow& row = row_of(rows, s);
    row.layers = stage.layers;
    row.ranks = stage.ranks;
  }
  add_times(rows, predicted, &StageRow::predicted);
  add_times(rows, measured, &StageRow::measured);
  return rows;
}

double busy_s(const StageTimes& times) {
  return times.compute_s + times.communicate_s + times.update_s;
}

TimeUnit unit_for(double largest_s) {
  if (largest_s >= 10) {
    return {1.0, "s"};
  }
  if (largest_s >= 1e-3 || largest_s <= 0) {
    return {1e-3, "ms"};
  }
  return {1e-6, "us"};
}

TimeUnit unit_for(const std::vector<StageRow>& rows) {
  double largest_s = 0;
  for (const StageRow& row : rows) {
    for (const auto& times : {row.predicted, row.measured}) {
      if (times) {
        largest_s = std::max({largest_s, busy_s(*times), times->wait_s});
      }
    }
  }
  return unit_for(largest_s);
}

std::string in_unit(double seconds, TimeUnit unit) {
  const double value = seconds / unit.in_seconds;
  if (value == 0) {
    return "0";
  }
  // Borders lie where rounding would add a digit.
  int decimals = 3;
  for (double border : {9.9995, 99.995, 999.95}) {
    decimals -= std::fabs(value) >= border ? 1 : 0;
  }
  return fmt::format("{:.{}f}", value, decimals);
}

std::string difference(double predicted_s, double measured_s) {
  if (predicted_s <= 0) {
    return "-";
  }
  const double percent = (measured_s / predicted_s - 1) * 100;
  if (percent > 9999) {
    return ">+9999%";
  }
  return fmt::format("{:+.{}f}%", percent, std::fabs(percent) < 99.95 ? 1 : 0);
}

std::string rank_ranges(const std::vector<int>& ranks, std::size_t max_length) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
      ++last;
    }
    parts.push_back(last == i ? fmt::format("{}", sorted[i])
                              : fmt::format("{}-{}", sorted[i], sorted[last]));
    i = last + 1;
  }
  std::string text = parts.empty() ? "-" : join(parts, ",");
  return text.size() <= max_length ? text : fmt::format("{} ranks", ranks.size());
}

std::vector<int> idle_ranks(const Plan& plan) {
  std::vector<int> idle;
  for (int rank = 0; rank < plan.workers && plan.num_stages() > 0; ++rank) {
    if (plan.stage_of_rank(rank) < 0) {
      idle.push_back(rank);
    }
  }
  return idle;
}

}  // namespace millrace::internal
