// millrace train: prepare, show the plan, train, report.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/run_folder.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/cli/torch/membership.h"
#include "millrace/report/report.h"
#include "millrace/runtime/recorder.h"
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

// The table and what is far off in it, while there is still most of the run to mend.
void tell_first_steps(const Job& job, const Trace& measured, TrainSink& told, Output& output) {
  constexpr double kFarOff = 0.2;
  output.end_progress();
  output.text(fmt::format("\nsteps {} to {} beside their prediction:\n{}", Recorder::kWarmSteps + 1,
                          Recorder::kFirstSteps,
                          stage_table(job.plan, job.predicted.trace, measured)));
  for (const std::string& warning :
       stage_warnings(job.plan, job.predicted.trace, measured, kFarOff)) {
    told.on_note("warning: " + warning);
    Value line = Value::map();
    line.set("event", Value::of("note"));
    line.set("text", Value::of(warning));
    output.line(line);
  }
}

JobPhase phase_of(TrainOptions::Phase phase) {
  switch (phase) {
    case TrainOptions::Phase::kEvaluating:
      return JobPhase::kEvaluating;
    case TrainOptions::Phase::kSaving:
      return JobPhase::kSaving;
    case TrainOptions::Phase::kTraining:
      break;
  }
  return JobPhase::kTraining;
}

// What a process prints that is not the leading one: nothing.
class SilentSink final : public EventSink {
 public:
  void on_note(const std::string& /*text*/) override {}
  void on_step(const StepEvent& /*event*/) override {}
  void on_eval(const EvalEvent& /*event*/) override {}
  void on_checkpoint(const CheckpointEvent& /*event*/) override {}
  void on_done(const DoneEvent& /*event*/) override {}
};

int train_as_member(const TrainArgs& args, Membership& membership, Output& output) {
  const bool leads = membership.leads();
  const RunConfig config = read_run_config(args.run.config, all_settings(args));
  membership.join(config.parallel.workers, config.parallel.timeout_s, to_toml(to_value(config)));
  membership.at(JobPhase::kPreparing);
  const std::string dir = leads ? choose_run_dir(args, config) : "";
  // What cannot be resumed is said before anything is measured or written.
  std::optional<CheckpointManifest> resumed;
  if (!args.resume.empty()) {
    resumed = read_checkpoint(resolve_checkpoint(args.resume)).manifest;
  } else if (!args.dry_run && leads) {
    refuse_used(dir);
  }
  PreparationSink preparation(output);
  Job job;
  try {
    job = prepare(config, {.cache_dir = cache_dir(),
                           .fresh = args.run.fresh,
                           .sink = &preparation,
                           .world = membership.joined()});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted || membership.world() != nullptr) {
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
  // A stop that came meanwhile ends all processes alike: training sees it before its first step.
  if (stop_requested() && membership.world() == nullptr) {
    return interrupted_before_training(output);
  }
  const bool fresh_dir = leads && !fs::exists(dir);
  try {
    if (leads) {
      write_inputs(dir, job);
    }
  } catch (...) {
    if (fresh_dir) {  // no half of a run folder stays
      std::error_code ignored;
      fs::remove_all(dir, ignored);
    }
    throw;
  }
  if (resumed && leads) {
    rewind_metrics(dir + "/" + kMetricsFile, resumed->step);
  }
  membership.planned(
      job.plan,
      [reductions = job.reductions](const std::vector<int>& leaders, int64_t elements,
                                    int64_t element_bytes) {
        const TimedCollective chosen = reductions->choose(leaders, elements, element_bytes);
        return ChosenCollective{chosen.name, chosen.grid};
      },
      job.reductions == nullptr ? nullptr : job.reductions->codec());
  std::unique_ptr<EventSink> silent = std::make_unique<SilentSink>();
  std::unique_ptr<TrainSink> told;
  if (leads) {
    told = std::make_unique<TrainSink>(output, dir + "/" + kMetricsFile);
  }
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
  options.sink = leads ? told.get() : silent.get();
  options.stop_requested = stop_requested;
  options.world = membership.world();
  options.on_alive = [&membership](TrainOptions::Phase phase, int64_t step) {
    membership.at(phase_of(phase));
    membership.at_step(step);
  };
  options.on_wait = [&](const std::string& text) {
    if (leads) {
      told->on_note(text);
    } else {
      fmt::print(stderr, "{}\n", text);  // which the launcher marks with this process's number
    }
  };
  options.on_first_steps = [&](const Trace& measured) {
    tell_first_steps(job, measured, *told, output);
  };
  const TrainResult result = train(job, options);
  // A process that had no signal of its own learned of it from the others.
  const int interrupted = 128 + (stop_requested() ? stop_signal() : SIGTERM);
  if (!leads) {
    return result.done.interrupted ? interrupted : 0;
  }
  output.end_progress();
  write_file_atomically(dir + "/" + kTraceFile, to_json(to_value(result.measured)) + "\n");
  told->on_done(result.done);
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
  return result.done.interrupted ? interrupted : 0;
}

}  // namespace

int run_train(const TrainArgs& args, Output& output) {
  const WorldPlace place =
      find_world({.engine = args.engine, .processes = args.processes.value_or(0)}, std::getenv);
  catch_signals(place.num_processes == 1);
  Membership membership(place);
  if (!membership.leads()) {
    output.silence();
  }
  try {
    const int status = train_as_member(args, membership, output);
    membership.leave();
    return status;
  } catch (const Error& error) {
    const bool ends_by_signal =
        error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kPeerLost;
    if (membership.world() != nullptr && stop_requested() && ends_by_signal) {
      membership.interrupt(error);
      return interrupted_before_training(output);
    }
    if (membership.fail(error)) {
      return exit_status_of(error);
    }
    throw;
  } catch (const std::exception& error) {
    membership.fail(Error(ErrorCode::kInternal, error.what()));
    throw;
  }
}

}  // namespace millrace::cli
