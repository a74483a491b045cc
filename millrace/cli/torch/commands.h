// The subcommands that need libtorch. Each returns an exit status; errors are thrown.
#pragma once

#include <functional>
#include <string>

#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"
#include "millrace/core/events.h"
#include "millrace/train/prepare.h"

namespace millrace::cli {

int run_train(const TrainArgs& args, Output& output);
int run_verify(const VerifyArgs& args, Output& output);
int run_compare(const CompareArgs& args, Output& output);
int run_profile(const ProfileArgs& args, Output& output);
int run_eval(const EvalArgs& args, Output& output);
int run_doctor(const DoctorArgs& args, Output& output);
int run_bench(const BenchArgs& args, Output& output);

// Where profiles and cluster measurements are cached: MILLRACE_CACHE, else XDG_CACHE_HOME/millrace,
// else
// ~/.cache/millrace; empty when there is no home.
std::string cache_dir();

// From SIGINT or SIGTERM on, true. A second signal ends the process at once, unless it is one of
// several (`alone` false), which all drain together and which their launcher ends.
void catch_signals(bool alone = true);
bool stop_requested();
int stop_signal();  // 0 when none came

// Shows preparation notes and progress. After a caught signal, on_progress throws kInterrupted.
class PreparationSink final : public EventSink {
 public:
  explicit PreparationSink(Output& output) : output_(output) {}
  void on_note(const std::string& text) override;
  void on_progress(const std::string& what, double fraction) override;

 private:
  Output& output_;
};

}  // namespace millrace::cli
