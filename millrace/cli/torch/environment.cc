#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "millrace/cli/torch/commands.h"

namespace millrace::cli {
namespace {

volatile std::sig_atomic_t caught_signal = 0;
volatile std::sig_atomic_t second_ends = 1;

extern "C" void remember_signal(int signal) {
  if (caught_signal != 0) {
    if (second_ends != 0) {
      ::_exit(128 + signal);
    }
    return;
  }
  caught_signal = signal;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string cache_dir() {
  if (const std::string own = variable("MILLRACE_CACHE"); !own.empty()) {
    return own;
  }
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) {
    return xdg + "/millrace";
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/millrace";
}

void catch_signals(bool alone) {
  second_ends = alone ? 1 : 0;
  struct sigaction action = {};
  action.sa_handler = remember_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return caught_signal != 0; }
int stop_signal() { return caught_signal; }

void PreparationSink::on_note(const std::string& text) {
  output_.end_progress();
  output_.text(text + "\n");
}

void PreparationSink::on_progress(const std::string& what, double fraction) {
  if (stop_requested()) {
    throw Error(ErrorCode::kInterrupted, "interrupted");
  }
  output_.progress(fmt::format("{}: {:3.0f}%", what, 100 * fraction));
}

}  // namespace millrace::cli
