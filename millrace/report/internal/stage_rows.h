// Predicted beside measured, stage by stage: the rows that the terminal and the page both show, and
// how their numbers are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/core/trace.h"

namespace millrace::internal {

// Of ranks that hold the same stages.
struct StageRow {
  std::vector<int> stages;
  std::vector<std::string> layers;
  std::vector<int> ranks;
  std::optional<StageTimes> predicted;
  std::optional<StageTimes> measured;
};

// One row for each set of stages that ranks of the plan or a trace hold, in the order of stages. A
// null trace, or one without ranks, leaves its side empty.
std::vector<StageRow> stage_rows(const Plan& plan, const Trace* predicted, const Trace* measured);

std::string stage_numbers(const std::vector<int>& stages);  // "0, 2"

// What a stage does itself: all but the wait.
double busy_s(const StageTimes& times);

// One unit for a whole table, so that its numbers can be compared by eye.
struct TimeUnit {
  double in_seconds = 1e-3;
  std::string_view name = "ms";
};
TimeUnit unit_for(double largest_s);
TimeUnit unit_for(const std::vector<StageRow>& rows);

// Four significant digits, at most five characters when below 100,000 units.
std::string in_unit(double seconds, TimeUnit unit);

// "+5.4%": measured against predicted; "-" where the prediction is nothing.
std::string difference(double predicted_s, double measured_s);

// "0-3,6"; above `max_length` characters "5 ranks".
std::string rank_ranges(const std::vector<int>& ranks, std::size_t max_length);
// The same of stages: "0,2", "16 stages".
std::string stage_ranges(const std::vector<int>& stages, std::size_t max_length);

// Ranks that the plan has and no stage uses.
std::vector<int> idle_ranks(const Plan& plan);

}  // namespace millrace::internal
