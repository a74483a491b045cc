// millrace train: prepare, show the plan, train, report.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/run_folder.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/report/report.h"
#include "millrace/train/checkpoint.h"
#include "millrace/train/resume.h"
#include "millrace/train/run_metrics.h"
#include "millrace/train/trainer.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

std::string format_left(double seconds) {
  const int64_t whole = std::llround(seconds);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// Terminal or JSON lines, and metrics.jsonl.
class TrainSink final : public EventSink {
 public:
  TrainSink(Output& output, const std::string& metrics_file)
      : output_(output), metrics_(metrics_file) {}

  void on_note(const std::string& text) override {
    output_.end_progress();
    output_.text(text + "\n");
    metrics_.on_note(text);
  }
  void on_step(const StepEvent& event) override {
    metrics_.on_step(event);
    output_.line(to_value(event));
    output_.progress(fmt::format("epoch {} step {}/{}  loss {:.4f}  {:.0f} samples/s  {} left",
                                 event.epoch + 1, event.step, event.total_steps, event.loss,
                                 event.samples_per_s, format_left(event.time_left_s)));
  }
  void on_eval(const EvalEvent& event) override {
    metrics_.on_eval(event);
    output_.line(to_value(event));
    output_.end_progress();
    output_.text(fmt::format("after epoch {}: test accuracy {:.2f}% ({} of {}), loss {:.4f}\n",
                             event.epoch, 100 * event.accuracy, format_count(event.correct),
                             format_count(event.predictions), event.loss));
  }
  void on_checkpoint(const CheckpointEvent& event) override {
    metrics_.on_checkpoint(event);
    output_.line(to_value(event));
    output_.end_progress();
    output_.text(fmt::format("checkpoint at step {}: {}\n", event.step, event.path));
  }
  void on_done(const DoneEvent& event) override {
    metrics_.on_done(event);
    output_.line(to_value(event));
  }

 private:
  Output& output_;
  RunMetrics metrics_;
};

// A folder that no earlier run used: runs/NAME, runs/NAME-2, ...
std::string new_run_dir(const std::string& name) {
  std::string dir = "runs/" + name;
  for (int i = 2; fs::exists(dir); ++i) {
    dir = fmt::format("runs/{}-{}", name, i);
  }
  return dir;
}

// A run that resumes from a run folder goes on in it; from a bare checkpoint, in a new one.
std::string choose_run_dir(const TrainArgs& args, const RunConfig& config) {
  if (!args.run_dir.empty()) {
    return args.run_dir;
  }
  if (!args.resume.empty() && fs::exists(fs::path(args.resume) / kConfigFile)) {
    return fs::path(args.resume).lexically_normal().string();
  }
  return new_run_dir(config.name);
}

// Two runs in one folder would mix their metrics and checkpoints.
void refuse_used(const std::string& dir) {
  if (fs::exists(fs::path(dir) / kConfigFile)) {
    throw Error(ErrorCode::kInvalidArgument,
                "this folder holds a run already; go on with it by --resume, or choose another "
                "--run-dir")
        .in_file(dir);
  }
}

int interrupted_before_training(Output& output) {
  output.text("interrupted before training: no run folder was made\n");
  return 128 + stop_signal();
}

void write_inputs(const std::string& dir, const Job& job) {
  const auto write = [&](const char* file, const Value& value) {
    write_file_atomically(dir + "/" + file, to_json(value) + "\n");
  };
  make_directories(dir);
  write_file_atomically(dir + "/" + kConfigFile, to_toml(to_value(job.config)));
  write(kProfileFile, to_value(job.profile));
  write(kClusterFile, to_value(job.cluster));
  write(kPlanFile, to_value(job.plan));
  write(kPredictionFile, to_value(job.predicted.trace));
}

// What a person should do when the prediction was far off.
void warn_when_off(const Job& job, const Trace& measured, Output& output) {
  constexpr double kFarOff = 0.2;
  if (measured.step_s <= 0 || job.predicted.step_s <= 0) {
    return;
  }
  const double difference = measured.step_s / job.predicted.step_s - 1;
  if (std::abs(difference) > kFarOff) {
    output.text(
        fmt::format("the step took {:+.0f}% against its prediction: something else may be using "
                    "this machine, or "
                    "did while it was profiled; --fresh measures again\n",
                    100 * difference));
  }
}

}  // namespace

int run_train(const TrainArgs& args, Output& output) {
  catch_signals();
  const RunConfig config = read_run_config(args.run.config, all_settings(args));
  const std::string dir = choose_run_dir(args, config);
  // What cannot be resumed is said before anything is measured or written.
  std::optional<CheckpointManifest> resumed;
  if (!args.resume.empty()) {
    resumed = read_checkpoint(resolve_checkpoint(args.resume)).manifest;
  } else if (!args.dry_run) {
    refuse_used(dir);
  }
  PreparationSink preparation(output);
  Job job;
  try {
    job =
        prepare(config, {.cache_dir = cache_dir(), .fresh = args.run.fresh, .sink = &preparation});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted) {
      throw;
    }
    return interrupted_before_training(output);
  }
  if (resumed) {
    check_resume(*resumed, job, args.resume);
  }
  output.end_progress();
  output.text("\n" + describe(job) + "\n");
  if (args.dry_run) {
    output.document(to_value(job.plan));
    return 0;
  }
  if (stop_requested()) {
    return interrupted_before_training(output);
  }
  const bool fresh_dir = !fs::exists(dir);
  try {
    write_inputs(dir, job);
  } catch (...) {
    if (fresh_dir) {  // no half of a run folder stays
      std::error_code ignored;
      fs::remove_all(dir, ignored);
    }
    throw;
  }
  if (resumed) {
    rewind_metrics(dir + "/" + kMetricsFile, resumed->step);
  }
  TrainSink sink(output, dir + "/" + kMetricsFile);
  for (const std::string& note : job.notes) {
    Value line = Value::map();
    line.set("event", Value::of("note"));
    line.set("text", Value::of(note));
    output.line(line);
  }
  TrainOptions options;
  options.run_dir = dir;
  if (!args.resume.empty()) {
    options.resume = args.resume;
  }
  options.sink = &sink;
  options.stop_requested = stop_requested;
  const TrainResult result = train(job, options);
  output.end_progress();
  write_file_atomically(dir + "/" + kTraceFile, to_json(to_value(result.measured)) + "\n");
  sink.on_done(result.done);
  const std::string page = write_report(dir);

  output.text("\n" + stage_table(job.plan, job.predicted.trace, result.measured) + "\n");
  warn_when_off(job, result.measured, output);
  if (result.done.interrupted) {
    output.text(
        fmt::format("interrupted: drained and saved; go on with `millrace train {} --resume {}`\n",
                    (fs::path(dir) / kConfigFile).string(), dir));
  } else {
    output.text(
        fmt::format("{} steps in {}", result.done.steps, format_seconds(result.done.train_s)));
    output.text(fmt::format(", test accuracy {:.2f}%\n", 100 * result.done.accuracy));
  }
  output.text(fmt::format("run folder {}; open {} in a browser\n", dir, page));
  return result.done.interrupted ? 128 + stop_signal() : 0;
}

}  // namespace millrace::cli
