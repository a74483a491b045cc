#include "millrace/cli/common/run_folder.h"

#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/base/error.h"
#include "millrace/base/file.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

std::string path_of(const std::string& run_dir, const char* file) {
  return (fs::path(run_dir) / file).string();
}

std::optional<Trace> read_trace(const std::string& path) {
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  return trace_from(read_document(path));
}

// A loss that is not finite was written as null: JSON has no NaN.
double loss_of(Reader& line) {
  const Value* value = line.raw("loss");
  return value == nullptr || value->kind == Value::Kind::kNull
             ? std::numeric_limits<double>::quiet_NaN()
             : line.number("loss");
}

StepEvent step_from(Reader& line) {
  StepEvent event;
  event.step = line.integer("step");
  event.epoch = line.integer("epoch");
  event.loss = loss_of(line);
  event.samples_per_s = line.number("samples_per_s", 0.0);
  event.total_steps = line.integer("total_steps", 0);
  event.step_in_epoch = line.integer("step_in_epoch", 0);
  event.steps_in_epoch = line.integer("steps_in_epoch", 0);
  event.samples = line.integer("samples", 0);
  event.time_left_s = line.number("time_left_s", 0.0);
  event.lr = line.number("lr", 0.0);
  return event;
}

EvalEvent eval_from(Reader& line) {
  EvalEvent event;
  event.epoch = line.integer("epoch");
  event.step = line.integer("step", 0);
  event.accuracy = line.number("accuracy");
  event.loss = loss_of(line);
  event.samples = line.integer("samples");
  event.correct = line.integer("correct", 0);
  event.predictions = line.integer("predictions", event.samples);
  return event;
}

DoneEvent done_from(Reader& line) {
  DoneEvent event;
  event.run_dir = line.text("run_dir", "");
  event.steps = line.integer("steps", 0);
  event.samples = line.integer("samples", 0);
  event.train_s = line.number("train_s", 0.0);
  event.accuracy = line.number("accuracy", 0.0);
  event.interrupted = line.boolean("interrupted", false);
  return event;
}

void add_event(Reader& line, RunReport& report) {
  const std::string event = line.text("event");
  if (event == "step") {
    report.steps.push_back(step_from(line));
    report.done.reset();  // the run was taken up again
  } else if (event == "eval") {
    report.evals.push_back(eval_from(line));
  } else if (event == "note") {
    report.notes.push_back(line.text("text"));
  } else if (event == "done") {
    report.done = done_from(line);
  }  // other events, such as checkpoints, are not on the page
}

void read_metrics(const std::string& path, RunReport& report) {
  const std::string text = read_file(path);
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    // A run that was killed may have left half of its last line.
    const bool torn = end == std::string_view::npos;
    rest = torn ? std::string_view() : rest.substr(end + 1);
    if (line.empty()) {
      continue;
    }
    try {
      const Document document = parse_json(line, path);
      Reader reader(document);
      add_event(reader, report);
    } catch (const Error& error) {
      if (torn) {
        return;
      }
      Error placed(ErrorCode::kBadFile, error.message());
      placed.in_file(path, number);
      throw placed.at_key(error.key().value_or(""));
    }
  }
}

}  // namespace

RunReport read_run(const std::string& run_dir) {
  if (!fs::is_directory(run_dir)) {
    throw Error(ErrorCode::kBadFile, "expected the folder of a run, found no such folder")
        .in_file(run_dir);
  }
  for (const char* file : {kConfigFile, kPlanFile}) {
    if (!fs::exists(fs::path(run_dir) / file)) {
      throw Error(ErrorCode::kBadFile,
                  std::string("expected the folder of a run, but it holds no ") + file)
          .in_file(run_dir);
    }
  }
  RunReport report;
  report.config_toml = read_file(path_of(run_dir, kConfigFile));
  const Document config = parse_toml(report.config_toml, path_of(run_dir, kConfigFile));
  report.title = Reader(config).text("name", fs::path(run_dir).lexically_normal().stem().string());
  report.plan = plan_from(read_document(path_of(run_dir, kPlanFile)));
  report.predicted = read_trace(path_of(run_dir, kPredictionFile));
  report.measured = read_trace(path_of(run_dir, kTraceFile));
  const std::string metrics = path_of(run_dir, kMetricsFile);
  if (fs::exists(metrics)) {
    read_metrics(metrics, report);
  }
  return report;
}

void write_perfetto(const std::string& run_dir, const RunReport& report) {
  std::vector<const Trace*> traces;
  for (const std::optional<Trace>* trace : {&report.predicted, &report.measured}) {
    if (*trace) {
      traces.push_back(&**trace);
    }
  }
  if (!traces.empty()) {
    write_file_atomically(path_of(run_dir, kPerfettoFile), perfetto_json(traces));
  }
}

std::string write_report(const std::string& run_dir, const RunReport& report) {
  write_perfetto(run_dir, report);
  std::string page = path_of(run_dir, kReportFile);
  write_file_atomically(page, report_html(report));
  return page;
}

std::string write_report(const std::string& run_dir) {
  return write_report(run_dir, read_run(run_dir));
}

}  // namespace millrace::cli
