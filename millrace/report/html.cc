#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/report/internal/assets.h"
#include "millrace/report/internal/escape.h"
#include "millrace/report/internal/page_data.h"
#include "millrace/report/internal/stage_rows.h"
#include "millrace/report/internal/template.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

using internal::escape_markup;
using internal::StageRow;
using internal::TimeUnit;

constexpr std::size_t kMostTimelineEvents = 24000;  // of each trace; some 50 bytes each

std::string cell(std::string_view tag, const std::string& text) {
  return fmt::format("<{0}>{1}</{0}>", tag, escape_markup(text));
}

std::string percent(double fraction) { return fmt::format("{:.2f} %", fraction * 100); }

// Figures of the run, the most asked for first.
std::string summary(const RunReport& report) {
  std::vector<std::pair<std::string, std::string>> figures;
  if (!report.evals.empty()) {
    const EvalEvent& last = report.evals.back();
    figures.emplace_back("accuracy", percent(last.accuracy));
  }
  if (!report.steps.empty()) {
    const double last = report.steps.back().loss;
    figures.emplace_back("last loss", std::isnan(last) ? "NaN" : fmt::format("{:.4g}", last));
  }
  if (report.done || !report.steps.empty()) {
    figures.emplace_back("steps",
                         format_count(report.done ? report.done->steps : report.steps.back().step));
  }
  if (report.done) {
    figures.emplace_back("wall time", format_seconds(report.done->train_s));
  }
  if (!report.steps.empty() && report.steps.back().samples_per_s > 0) {
    figures.emplace_back("samples/s", fmt::format("{:.4g}", report.steps.back().samples_per_s));
  }
  std::string text;
  for (const auto& [name, value] : figures) {
    text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_markup(name),
                        escape_markup(value));
  }
  return text.empty() ? "" : "<dl class=\"figures\">\n" + text + "</dl>\n";
}

std::string evaluations(const RunReport& report) {
  if (report.evals.empty()) {
    return "<p class=\"absent\">No evaluation was made.</p>\n";
  }
  const EvalEvent& last = report.evals.back();
  return fmt::format(
      "<p>Last: {} right of {} after step {} (epoch {}).</p>\n<div id=\"accuracy\" "
      "class=\"plot\"></div>\n",
      format_count(last.correct), format_count(last.predictions), format_count(last.step),
      last.epoch);
}

std::string loss(const RunReport& report) {
  return report.steps.empty() ? "<p class=\"absent\">No step was recorded.</p>\n"
                              : "<div id=\"loss\" class=\"plot\"></div>\n";
}

bool has_events(const std::optional<Trace>& trace) {
  return trace && std::any_of(trace->ranks.begin(), trace->ranks.end(),
                              [](const RankTrace& rank) { return !rank.events.empty(); });
}

std::string timeline(const RunReport& report) {
  const bool predicted = has_events(report.predicted);
  const bool measured = has_events(report.measured);
  if (!predicted && !measured) {
    return "<p class=\"absent\">No actions were recorded.</p>\n";
  }
  std::string text;
  if (!predicted || !measured) {
    text = fmt::format("<p class=\"absent\">There is no {} trace.</p>\n",
                       predicted ? "measured" : "predicted");
  }
  return text + "<div id=\"timeline\"></div>\n";
}

// One side's cells of a stage: compute, communicate, wait, update, busy.
std::string time_cells(const std::optional<StageTimes>& times, TimeUnit unit) {
  std::string text;
  const StageTimes shown = times.value_or(StageTimes());
  for (double seconds : {shown.compute_s, shown.communicate_s, shown.wait_s, shown.update_s,
                         internal::busy_s(shown)}) {
    text += cell("td", times ? internal::in_unit(seconds, unit) : "-");
  }
  return text;
}

// Predicted beside measured. Stages that differ by much are marked, so that the eye finds them.
std::string stages(const RunReport& report) {
  const Trace* predicted = report.predicted ? &*report.predicted : nullptr;
  const Trace* measured = report.measured ? &*report.measured : nullptr;
  const std::vector<StageRow> rows = internal::stage_rows(report.plan, predicted, measured);
  if (rows.empty()) {
    return "<p class=\"absent\">No stage is known.</p>\n";
  }
  const TimeUnit unit = internal::unit_for(rows);
  const std::string columns =
      "<th>compute</th><th>communicate</th><th>wait</th><th>update</th><th>busy</th>";
  std::string text = fmt::format(
      "<div class=\"wide\"><table class=\"stages\">\n<thead>\n<tr><th rowspan=\"2\">stage</th>"
      "<th rowspan=\"2\">layers</th><th rowspan=\"2\">ranks</th><th colspan=\"5\">predicted, {0} a "
      "step</th><th colspan=\"5\">measured, {0} a step</th><th rowspan=\"2\">difference</th></tr>\n"
      "<tr>{1}{1}</tr>\n</thead>\n<tbody>\n",
      unit.name, columns);
  for (const StageRow& row : rows) {
    const std::string difference = row.predicted && row.measured
                                       ? internal::difference(internal::busy_s(*row.predicted),
                                                              internal::busy_s(*row.measured))
                                       : "-";
    text += fmt::format("<tr><th>{}</th>", internal::stage_numbers(row.stages)) +
            cell("td", fmt::format("{}", row.layers.size())) +
            cell("td", internal::rank_ranges(row.ranks, 24)) + time_cells(row.predicted, unit) +
            time_cells(row.measured, unit) + cell("td", difference) + "</tr>\n";
  }
  text += "</tbody>\n";
  if (predicted != nullptr || measured != nullptr) {
    text += fmt::format(
        "<tfoot><tr><th colspan=\"3\">whole step</th><td colspan=\"5\">{}</td><td "
        "colspan=\"5\">{}</td><td>{}</td></tr></tfoot>\n",
        predicted != nullptr ? format_seconds(predicted->step_s) : "-",
        measured != nullptr ? format_seconds(measured->step_s) : "-",
        predicted != nullptr && measured != nullptr
            ? escape_markup(internal::difference(predicted->step_s, measured->step_s))
            : "-");
  }
  return text +
         "</table></div>\n<p class=\"aside\">Means over a stage's replicas. Busy is all but the "
         "wait; "
         "the difference compares busy times, in the last row whole steps.</p>\n";
}

// "conv1 to pool2 (5 layers)".
std::string layer_words(const std::vector<std::string>& layers) {
  if (layers.size() <= 1) {
    return layers.empty() ? "no layers" : layers.front();
  }
  return fmt::format("{} to {} ({} layers)", layers.front(), layers.back(), layers.size());
}

// Largest predicted memory among a stage's ranks; empty when the plan predicts none.
std::string memory_words(const Plan& plan, const PlanStage& stage) {
  int64_t most = 0;
  for (int rank : stage.ranks) {
    if (rank >= 0 && static_cast<std::size_t>(rank) < plan.memory.size()) {
      most = std::max(most, plan.memory[static_cast<std::size_t>(rank)].total());
    }
  }
  return most == 0 ? "" : ", predicted memory of a rank " + format_bytes(static_cast<double>(most));
}

std::string plan_words(const Plan& plan) {
  if (plan.stages.empty()) {
    return "<p class=\"absent\">There is no plan.</p>\n";
  }
  std::string text = fmt::format(
      "<p>Planner <b>{}</b> cut the model into {} stage{} for {} worker{}. Schedule <b>{}</b> with "
      "{} "
      "microbatch{} a step, exchange rule <b>{}</b>.</p>\n<ol class=\"plan\" start=\"0\">\n",
      escape_markup(plan.planner), plan.num_stages(), plan.num_stages() == 1 ? "" : "s",
      plan.workers, plan.workers == 1 ? "" : "s", escape_markup(plan.schedule), plan.microbatches,
      plan.microbatches == 1 ? "" : "es", escape_markup(plan.rule));
  for (const PlanStage& stage : plan.stages) {
    text +=
        cell("li", fmt::format("{} on rank{} {}{}", layer_words(stage.layers),
                               stage.ranks.size() == 1 ? "" : "s",
                               internal::rank_ranges(stage.ranks, 60), memory_words(plan, stage))) +
        "\n";
  }
  text += "</ol>\n";
  if (const std::vector<int> idle = internal::idle_ranks(plan); !idle.empty()) {
    text += fmt::format("<p>Left idle: rank{} {}.</p>\n", idle.size() == 1 ? "" : "s",
                        internal::rank_ranges(idle, 60));
  }
  std::vector<std::string> times;
  for (const auto& [name, seconds] :
       {std::pair("this plan", plan.minibatch_s),
        std::pair("plain data parallel", plan.data_parallel_minibatch_s),
        std::pair("one worker", plan.one_worker_minibatch_s)}) {
    if (seconds > 0) {
      times.push_back(fmt::format("{} {}", name, format_seconds(seconds)));
    }
  }
  if (!times.empty()) {
    text += fmt::format("<p>The planner's formula, a minibatch: {}.</p>\n", join(times, ", "));
  }
  return text;
}

std::string notes(const RunReport& report) {
  std::string text;
  for (const std::string& note : report.notes) {
    text += cell("li", note) + "\n";
  }
  if (report.done && report.done->interrupted) {
    text += "<li>The run was interrupted; it can be resumed.</li>\n";
  }
  return text.empty() ? "" : "<section>\n<h2>Notes</h2>\n<ul>\n" + text + "</ul>\n</section>\n";
}

std::string config(const RunReport& report) {
  if (report.config_toml.empty()) {
    return "<p class=\"absent\">It was not recorded.</p>\n";
  }
  return "<p class=\"aside\">The effective one, defaults included.</p>\n" +
         cell("pre", report.config_toml) + "\n";
}

}  // namespace

std::string report_html(const RunReport& report) {
  return internal::fill(
      internal::kPageTemplate,
      {{"title", escape_markup(report.title.empty() ? "untitled run" : report.title)},
       {"plot_style", std::string(internal::kPlotStyle)},
       {"style", std::string(internal::kPageStyle)},
       {"summary", summary(report)},
       {"notes", notes(report)},
       {"loss", loss(report)},
       {"evaluations", evaluations(report)},
       {"timeline", timeline(report)},
       {"stages", stages(report)},
       {"plan", plan_words(report.plan)},
       {"config", config(report)},
       {"data", internal::page_data(report, kMostTimelineEvents)},
       {"plot_licence", std::string(internal::kPlotLicence)},
       {"plot_script", std::string(internal::kPlotScript)},
       {"timeline_script", std::string(internal::kTimelineScript)},
       {"script", std::string(internal::kPageScript)}});
}

}  // namespace millrace
