// RunMetrics: the metrics.jsonl of a run folder: one JSON object a line, the same lines that `train
// --json` prints.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "millrace/base/document.h"
#include "millrace/core/events.h"

namespace millrace {

// {"event": "step", "step", "epoch", "loss", "samples_per_s", ...} and kin.
Value to_value(const StepEvent& event);
Value to_value(const EvalEvent& event);
Value to_value(const CheckpointEvent& event);
Value to_value(const DoneEvent& event);

// Takes metrics.jsonl back to a checkpoint: keeps the lines up to `step`, drops those of later
// steps (a run that was killed had gone on after it), every `done`, and a torn last line. No file,
// no change. Throws kNoSpace or kBadFile.
void rewind_metrics(const std::string& path, int64_t step);

// Appends to `path`; lines are flushed at least once a second and at each event that is not a step.
// Throws kNoSpace or kBadFile.
class RunMetrics final : public EventSink {
 public:
  explicit RunMetrics(std::string path);
  void on_step(const StepEvent& event) override;
  void on_eval(const EvalEvent& event) override;
  void on_checkpoint(const CheckpointEvent& event) override;
  void on_done(const DoneEvent& event) override;
  void on_note(const std::string& text) override;

 private:
  void write(const Value& line, bool flush);

  std::string path_;
  std::ofstream file_;
  double last_flush_s_ = 0;
};

}  // namespace millrace
