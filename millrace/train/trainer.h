// Trainer: a whole run: epochs, evaluation, checkpoints, the run folder's metrics. Tells an
// EventSink what happens.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "millrace/core/events.h"
#include "millrace/core/trace.h"
#include "millrace/train/prepare.h"

namespace millrace {

struct TrainOptions {
  std::string run_dir;                   // exists; checkpoints go below it
  std::optional<std::string> resume;     // a checkpoint, a checkpoints folder or a run folder
  EventSink* sink = nullptr;             // not null
  std::function<bool()> stop_requested;  // Ctrl-C; polled from the calling thread
  // Of several processes, each of which calls train() with the same job; only the leading one's
  // sink is told, and only it writes. Null: this process alone.
  World* world = nullptr;
  // What this process is at: its phase, and the last step that it has completed. Called from the
  // calling thread several times a second. May be empty.
  enum class Phase { kTraining, kEvaluating, kSaving };
  std::function<void(Phase phase, int64_t step)> on_alive;
  // In every process: who of its ranks has been waiting for long, see StepHooks. May be empty.
  std::function<void(const std::string& text)> on_wait;
  // In the leading process, once: what each rank did a step in the first ones
  // (Session::first_steps). With one process as soon as all ranks have done them, with several at
  // the end of that epoch. A shorter run is not told of. May be empty.
  std::function<void(const Trace& measured)> on_first_steps;
};

struct TrainResult {
  Trace measured;
  DoneEvent done;
};

// Runs to the end, or to the first stop request: then the pipeline drains, a checkpoint is written,
// and done.interrupted is true. Evaluates on the whole test set as [train] says. Throws the first
// cause when a rank fails.
TrainResult train(const Job& job, const TrainOptions& options);

}  // namespace millrace
