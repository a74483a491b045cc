// What the processes of one machine, started by one launcher, tell the launcher about themselves
// even when they end without a word: a page of shared anonymous memory, inherited over exec and
// gone with its last process. Never a file.
//
// Written by the processes of a run, read by the launcher (cli/common/launch.h), which alone prints
// why a job ended. Any thread of any process may call anything: all fields are lock-free atomics,
// and texts are written once, so that no reader sees half of one and no writer that was killed in
// between blocks anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {

enum class JobPhase : int32_t {
  kStarting,  // a process that has not said anything yet
  kJoining,
  kPreparing,
  kTraining,
  kEvaluating,
  kSaving,
  kDone,
};

const char* to_string(JobPhase phase);  // "starting", "joining", ...

// The error that ended a process.
struct JobFailure {
  uint32_t order = 0;  // over all processes of the job, from 1: which came first
  Error error;
};

class JobBoard {
 public:
  static constexpr int kMaxProcesses = 4096;
  static constexpr std::size_t kMaxStagesBytes = 200;
  static constexpr std::size_t kMaxFailureBytes = 2048;
  static constexpr std::size_t kMaxStopBytes = 1024;

  // A new board for processes 0 to num_processes - 1. Its descriptor closes on exec; the launcher
  // lifts that in the child only. Throws Error(kInternal) where the system gives no memory.
  static JobBoard create(int num_processes);
  // The board behind an inherited descriptor, which the object owns from then on, and which closes
  // on exec again. Throws Error(kInvalidArgument), with the descriptor left open, when it is no
  // board, or one of another size or version: the launcher is then another Millrace.
  static JobBoard attach(int fd);

  JobBoard(JobBoard&& other) noexcept;
  JobBoard& operator=(JobBoard&& other) noexcept;
  JobBoard(const JobBoard&) = delete;
  JobBoard& operator=(const JobBoard&) = delete;
  ~JobBoard();

  int fd() const noexcept { return fd_; }
  int num_processes() const noexcept;

  // The port of process 0's store; 0 until it is known.
  void set_port(int port) noexcept;
  int port() const noexcept;

  // Of one process; `process` must be one of the board's.
  void set_pid(int process, int pid) noexcept;
  int pid(int process) const noexcept;  // 0: not set
  void set_phase(int process, JobPhase phase) noexcept;
  JobPhase phase(int process) const noexcept;
  void set_ranks(int process, int first, int last) noexcept;
  std::optional<std::pair<int, int>> ranks(int process) const noexcept;  // first and last
  // The last completed step, as StepEvent counts them.
  void set_step(int process, int64_t step) noexcept;
  std::optional<int64_t> step(int process) const noexcept;

  // Texts that are written once: a second call changes nothing. Longer ones are cut.
  //
  // The stages it holds, for people: "stages 1 and 3 of 4".
  void set_stages(int process, std::string_view text) noexcept;
  std::string stages(int process) const;  // "" : not set
  // The error that ends the process; its phase stays, and says during what. A process that has a
  // board writes its error here and prints nothing: the launcher prints the first cause of all,
  // once. Then it ends: the launcher ends those that linger.
  void set_failure(int process, const Error& error) noexcept;
  std::optional<JobFailure> failure(int process) const;

  // Launcher to processes: the job ends, and why. A process polls the first, which is one load.
  void set_stop(std::string_view why) noexcept;
  bool stop_requested() const noexcept;
  std::string stop_text() const;

 private:
  struct Page;
  struct Slot;

  JobBoard(int fd, Page* page, std::size_t bytes) noexcept;
  void release() noexcept;
  Slot& slot(int process) const noexcept;

  int fd_ = -1;
  Page* page_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace millrace
