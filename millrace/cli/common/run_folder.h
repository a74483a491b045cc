// The folder of a run: the names of its files, and the page and the Perfetto trace that are made
// from them. Every file but these two is written while the run goes on, so both can be made of a
// run that has not ended or was cut off.
#pragma once

#include <string>

#include "millrace/core/plan.h"
#include "millrace/report/report.h"

namespace millrace::cli {

inline constexpr const char* kConfigFile = "config.toml";  // the effective configuration
inline constexpr const char* kProfileFile = "profile.json";
inline constexpr const char* kClusterFile = "cluster.json";
inline constexpr const char* kPlanFile = "plan.json";
inline constexpr const char* kPredictionFile = "prediction.json";  // Trace, simulated
inline constexpr const char* kTraceFile = "trace.json";            // Trace, measured
inline constexpr const char* kPerfettoFile = "trace.perfetto.json";
inline constexpr const char* kMetricsFile = "metrics.jsonl";  // what `train --json` prints
inline constexpr const char* kReportFile = "report.html";
inline constexpr const char* kCheckpointsFolder = "checkpoints";

// What the folder holds. config.toml and plan.json must be there; a trace or metrics that are
// missing are left out. Of metrics.jsonl a torn last line is ignored; any other damage is
// Error(kBadFile) with file and line.
RunReport read_run(const std::string& run_dir);

// Writes report.html and trace.perfetto.json from the folder's other files; returns the page's
// path.
std::string write_report(const std::string& run_dir);
std::string write_report(const std::string& run_dir, const RunReport& report);

// trace.perfetto.json with the predicted and the measured lanes that `report` has; none, no file.
void write_perfetto(const std::string& run_dir, const RunReport& report);

}  // namespace millrace::cli
