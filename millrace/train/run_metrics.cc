#include "millrace/train/run_metrics.h"

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/file.h"

namespace millrace {

Value to_value(const StepEvent& event) {
  Value line = Value::map();
  line.set("event", Value::of("step"));
  line.set("step", Value::of(event.step));
  line.set("total_steps", Value::of(event.total_steps));
  line.set("epoch", Value::of(event.epoch));
  line.set("step_in_epoch", Value::of(event.step_in_epoch));
  line.set("steps_in_epoch", Value::of(event.steps_in_epoch));
  // JSON has no NaN: a loss that is not finite is null.
  line.set("loss", event.loss - event.loss == 0 ? Value::of(event.loss) : Value());
  line.set("samples", Value::of(event.samples));
  line.set("samples_per_s", Value::of(event.samples_per_s));
  line.set("time_left_s", Value::of(event.time_left_s));
  line.set("lr", Value::of(event.lr));
  if (event.gradient_norm) {
    const double norm = *event.gradient_norm;
    line.set("gradient_norm", norm - norm == 0 ? Value::of(norm) : Value());
  }
  return line;
}

Value to_value(const EvalEvent& event) {
  Value line = Value::map();
  line.set("event", Value::of("eval"));
  line.set("epoch", Value::of(event.epoch));
  line.set("step", Value::of(event.step));
  line.set("accuracy", Value::of(event.accuracy));
  line.set("loss", event.loss - event.loss == 0 ? Value::of(event.loss) : Value());
  line.set("correct", Value::of(event.correct));
  line.set("predictions", Value::of(event.predictions));
  line.set("samples", Value::of(event.samples));
  return line;
}

Value to_value(const CheckpointEvent& event) {
  Value line = Value::map();
  line.set("event", Value::of("checkpoint"));
  line.set("step", Value::of(event.step));
  line.set("path", Value::of(event.path));
  return line;
}

Value to_value(const DoneEvent& event) {
  Value line = Value::map();
  line.set("event", Value::of("done"));
  line.set("run_dir", Value::of(event.run_dir));
  line.set("steps", Value::of(event.steps));
  line.set("samples", Value::of(event.samples));
  line.set("train_s", Value::of(event.train_s));
  line.set("accuracy", Value::of(event.accuracy));
  line.set("interrupted", Value::of(event.interrupted));
  return line;
}

void rewind_metrics(const std::string& path, int64_t step) {
  if (!std::filesystem::exists(path)) {
    return;
  }
  const std::string text = read_file(path);
  std::string kept;
  int64_t last_step = 0;  // a note has no step: it belongs to the line before it
  std::string_view rest = text;
  for (int number = 1; rest.find('\n') != std::string_view::npos; ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    if (line.size() == 1) {
      continue;
    }
    try {
      const Document document = parse_json(line, path);
      Reader reader(document);
      last_step = reader.integer("step", last_step);
      if (last_step <= step && reader.text("event") != "done") {
        kept += line;
      }
    } catch (const Error& error) {
      throw Error(ErrorCode::kBadFile, error.message() + "; remove this line, then resume")
          .in_file(path, number);
    }
  }
  if (kept != text) {
    write_file_atomically(path, kept);
  }
}

RunMetrics::RunMetrics(std::string path) : path_(std::move(path)), file_(path_, std::ios::app) {
  if (!file_) {
    throw_write_error(path_, errno);
  }
}

void RunMetrics::write(const Value& line, bool flush) {
  file_ << to_json(line, -1) << '\n';
  const double now = monotonic_s();
  if (flush || now - last_flush_s_ > 1.0) {
    file_.flush();
    last_flush_s_ = now;
  }
  if (!file_) {
    throw_write_error(path_, errno);
  }
}

void RunMetrics::on_step(const StepEvent& event) { write(to_value(event), false); }
void RunMetrics::on_eval(const EvalEvent& event) { write(to_value(event), true); }
void RunMetrics::on_checkpoint(const CheckpointEvent& event) { write(to_value(event), true); }
void RunMetrics::on_done(const DoneEvent& event) { write(to_value(event), true); }

void RunMetrics::on_note(const std::string& text) {
  Value line = Value::map();
  line.set("event", Value::of("note"));
  line.set("text", Value::of(text));
  write(line, true);
}

}  // namespace millrace
