#include "millrace/report/internal/stage_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

using Rows = std::map<std::vector<int>, StageRow>;

// Stages unknown to the plan get a row, too.
StageRow& row_of(Rows& rows, const std::vector<int>& stages) {
  StageRow& row = rows[stages];
  row.stages = stages;
  return row;
}

void add_times(Rows& rows, const Trace* trace, std::optional<StageTimes> StageRow::*side) {
  if (trace == nullptr) {
    return;
  }
  for (const StageTimes& times : stage_times(*trace)) {
    row_of(rows, times.stages).*side = times;
  }
}

}  // namespace

std::vector<StageRow> stage_rows(const Plan& plan, const Trace* predicted, const Trace* measured) {
  std::map<int, std::vector<int>> held;  // by rank
  for (int s = 0; s < plan.num_stages(); ++s) {
    for (const int rank : plan.stages[static_cast<std::size_t>(s)].ranks) {
      held[rank].push_back(s);
    }
  }
  Rows rows;
  for (const auto& [rank, stages] : held) {
    StageRow& row = row_of(rows, stages);
    row.ranks.push_back(rank);
    if (row.ranks.size() == 1) {
      for (const int s : stages) {
        const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
        row.layers.insert(row.layers.end(), stage.layers.begin(), stage.layers.end());
      }
    }
  }
  add_times(rows, predicted, &StageRow::predicted);
  add_times(rows, measured, &StageRow::measured);
  std::vector<StageRow> sorted;
  for (auto& [stages, row] : rows) {
    sorted.push_back(std::move(row));
  }
  return sorted;
}

std::string stage_numbers(const std::vector<int>& stages) {
  return fmt::format("{}", fmt::join(stages, ", "));
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

namespace {

std::string ranges(const std::vector<int>& numbers, std::size_t max_length, const char* noun) {
  std::vector<int> sorted = numbers;
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
  return text.size() <= max_length ? text : fmt::format("{} {}", numbers.size(), noun);
}

}  // namespace

std::string rank_ranges(const std::vector<int>& ranks, std::size_t max_length) {
  return ranges(ranks, max_length, "ranks");
}

std::string stage_ranges(const std::vector<int>& stages, std::size_t max_length) {
  return ranges(stages, max_length, "stages");
}

std::vector<int> idle_ranks(const Plan& plan) {
  std::vector<int> idle;
  for (int rank = 0; rank < plan.workers && plan.num_stages() > 0; ++rank) {
    if (plan.stages_of_rank(rank).empty()) {
      idle.push_back(rank);
    }
  }
  return idle;
}

}  // namespace millrace::internal
