// EventSink: what a run tells its listeners. `train` calls it from one thread at a time; `cli`
// connects the terminal, the JSON lines, metrics.jsonl and the report's data to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

struct StepEvent {
  int64_t step = 0;  // updates done so far, counted from 1
  int64_t epoch = 0;
  int64_t steps_in_epoch = 0;
  int64_t step_in_epoch = 0;
  int64_t total_steps = 0;
  double loss = 0;  // mean over the step's samples
  int64_t samples = 0;
  double samples_per_s = 0;  // over the last stretch
  double time_left_s = 0;
  double lr = 0;
  std::optional<double> gradient_norm;  // of the mean gradient before clipping, with clip_norm
};

struct EvalEvent {
  int64_t epoch = 0;
  int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
  int64_t correct = 0;
  int64_t samples = 0;
  int64_t predictions =
      0;  // samples, or their positions where each has a class: what accuracy is of
};

struct CheckpointEvent {
  std::string path;
  int64_t step = 0;
};

struct DoneEvent {
  std::string run_dir;
  int64_t steps = 0;
  int64_t samples = 0;
  double train_s = 0;
  double accuracy = 0;
  bool interrupted = false;
};

// Functions that do nothing by default: a listener overrides what it cares for.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_note(const std::string& /*text*/) {}  // a line for a person
  virtual void on_progress(const std::string& /*what*/, double /*fraction*/) {
  }  // a long preparation
  virtual void on_step(const StepEvent& /*event*/) {}
  virtual void on_eval(const EvalEvent& /*event*/) {}
  virtual void on_checkpoint(const CheckpointEvent& /*event*/) {}
  virtual void on_done(const DoneEvent& /*event*/) {}
};

}  // namespace millrace
