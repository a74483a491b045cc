// Artifacts as pages and files: terminal text, SVG, the Perfetto trace, and the self-contained
// report.html of a run.
//
// Pure functions from values to text, safe from any thread; `cli` writes and prints. They take
// traces as they come: no ranks, ranks without events, no steps are shown as absent, never an
// error.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/events.h"
#include "millrace/core/plan.h"
#include "millrace/core/trace.h"

namespace millrace {

// One row a stage: predicted and measured compute, communicate, wait and update time a step, their
// busy sum (all but the wait) and how far the measured one is from the predicted, in percent; the
// last row compares the whole step. For the terminal: within 100 columns. A trace without ranks is
// left out.
std::string stage_table(const Plan& plan, const Trace& predicted, const Trace& measured);

// A line for each row of that table whose busy time is more than `tolerance` (0.2: a fifth) of the
// predicted one away from it: by how much, what of it went up or down most, the likely reason and
// what to do. None where all is near, or either trace is without ranks.
std::vector<std::string> stage_warnings(const Plan& plan, const Trace& predicted,
                                        const Trace& measured, double tolerance);

// Chrome trace-event JSON (opens in Perfetto): one process a trace, called "predicted" (source
// "simulated") or "measured"; one thread a rank, and a second one where actions overlap in time.
// Waits are slices inside their action's, drawn at its start. At most `max_events` a rank (the
// first ones); how many were left out is in "otherData". Null pointers are skipped.
std::string perfetto_json(const std::vector<const Trace*>& traces, std::size_t max_events = 20000);

// Everything the page of a run shows.
struct RunReport {
  std::string title;
  std::string config_toml;  // the effective configuration
  Plan plan;
  std::optional<Trace> predicted;
  std::optional<Trace> measured;
  std::vector<StepEvent> steps;
  std::vector<EvalEvent> evals;
  std::vector<std::string> notes;  // e.g. what the planner advises
  std::optional<DoneEvent> done;   // absent when the run has not ended
};

// One HTML file with its script and style inside; it loads nothing. Loss curve, accuracy, timeline
// per worker (predicted above measured; wheel, drag, pinch and keys), stage table, plan,
// configuration. However long the run, the page stays at a few MB: curves are thinned keeping each
// stretch's extremes, the timeline keeps the events around a steady stretch and says so.
std::string report_html(const RunReport& report);

// What a trace's times are: seconds, or slots of a simulation in slots, of which only the work is
// drawn (messages and updates take no time, waits are idle).
enum class TraceClock { kSeconds, kSlots };

// An SVG of a trace as a time-by-rank chart: a lane a rank, a box an action, coloured by kind and
// shaded by the rank's stages and directions, the microbatch in it where it fits; each rank's
// bubble and peak stash; lines at updates where several steps are drawn. (`millrace schedule --draw
// svg`, docs.) A trace of more than some thousand actions is cut to its steady part.
std::string timeline_svg(const Trace& trace, const std::string& title,
                         TraceClock clock = TraceClock::kSeconds);

// The same as one HTML file that loads nothing, for light and dark screens: the lanes can be
// stretched (buttons, keys, wheel) until every box shows its number. Without script it is the SVG's
// picture.
std::string timeline_html(const Trace& trace, const std::string& title,
                          TraceClock clock = TraceClock::kSeconds);

// Terminal timeline of the steady part of a trace: one row a rank, at most `columns` wide (at least
// 40 are used), then a key. Each column shows what took most of its time.
std::string timeline_text(const Trace& trace, int columns = 100);

}  // namespace millrace
