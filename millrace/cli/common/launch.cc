#include "millrace/cli/common/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/job_board.h"
#include "millrace/cli/common/child.h"
#include "millrace/cli/common/environment.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/first_cause.h"
#include "millrace/cli/common/mpirun.h"
#include "millrace/cli/common/signals.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using How = ProcessEnd::How;

// How often the board is looked at for a process that failed but does not end.
constexpr double kLookSeconds = 0.5;
// The same under mpirun, which ends the others so soon after the first.
constexpr double kLookUnderMpirunSeconds = 0.01;

// Nobody guesses it, so that a process of another job is never taken for one of this.
std::string new_job_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

struct Child {
  ProcessEnd end;
  Descriptor commands;  // with hosts: names of signals for the remote side
  std::vector<LineForwarder> lines;

  bool running() const { return end.how == How::kRunning || end.how == How::kStopped; }
};

class Launcher {
 public:
  explicit Launcher(const LaunchPlan& plan)
      : plan_(plan), board_(JobBoard::create(plan.num_processes)), job_id_(new_job_id()) {
    if (!plan_.hosts.empty() && !under_mpirun_) {
      places_ = place_on_hosts(plan_.hosts, plan_.num_processes);
    }
  }
  // Also when a process could not be started.
  ~Launcher() {
    for (Child& child : children_) {
      if (child.running()) {
        ::kill(-child.end.pid, SIGKILL);
        ::waitpid(child.end.pid, nullptr, 0);
      }
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    if (under_mpirun_) {
      start_mpirun();
    }
    for (int process = 0; process < plan_.num_processes && !under_mpirun_; ++process) {
      start(process);
    }
    while (num_running() > 0) {
      wait();
      take_signals();
      for (Child& child : children_) {
        for (LineForwarder& lines : child.lines) {
          lines.forward();
        }
      }
      take_ends();
      look_at_board();
      press_on();
    }
    for (Child& child : children_) {
      for (LineForwarder& lines : child.lines) {
        lines.finish();
      }
    }
    return result();
  }

 private:
  // How far the ending of the job has come.
  enum class Ending { kNo, kGrace, kTerm, kKill };

  bool remote() const { return !places_.empty(); }

  std::vector<std::string> variables_of(int process) const {
    const auto variable = [](const char* name, const auto& value) {
      return fmt::format("{}={}", name, value);
    };
    std::string store = "127.0.0.1:0";
    if (remote()) {
      const std::string& first = places_[0].host;
      store = fmt::format("{}:{}", first.substr(first.find('@') + 1), plan_.store_port);
    }
    std::vector<std::string> variables = {
        variable(kProcessVariable, process),
        variable(kProcessesVariable, plan_.num_processes),
        variable(kLocalProcessVariable, remote() ? places_[process].local_process : process),
        variable(kJobVariable, job_id_),
        variable(kStoreVariable, store),
        variable(kEngineVariable, plan_.engine),
    };
    if (!remote()) {
      variables.push_back(variable(kBoardVariable, board_.fd()));
    }
    return variables;
  }

  void start(int process) {
    Child child;
    child.end.process = process;
    child.end.by_ssh = remote();
    child.end.host = remote() ? places_[process].host : host_;
    ChildRequest request;
    Pipe commands;
    if (remote()) {
      request.program = find_in_path(plan_.remote_shell);
      request.argv = {plan_.remote_shell, "-o", "BatchMode=yes", child.end.host,
                      remote_command(fs::current_path().string(), variables_of(process),
                                     plan_.program, {plan_.argv.begin() + 1, plan_.argv.end()})};
      request.environment = environment_with({});
      commands = make_pipe();
      set_nonblocking(commands.write);
      request.input_fd = commands.read.get();
    } else {
      request.program = plan_.program;
      request.argv = plan_.argv;
      request.environment = environment_with(variables_of(process));
      request.inherited_fd = board_.fd();
    }
    std::vector<Descriptor> theirs;
    if (process > 0) {
      for (int* fd : {&request.output_fd, &request.error_fd}) {
        Pipe pipe = make_pipe();
        *fd = pipe.write.get();
        theirs.push_back(std::move(pipe.write));
        child.lines.emplace_back(std::move(pipe.read), fmt::format("process {}: ", process));
      }
    }
    child.end.pid = start_child(request);
    child.commands = std::move(commands.write);
    children_.push_back(std::move(child));
  }

  // One child for all of them. On this machine they find the board.
  void start_mpirun() {
    MpirunPlan mpirun;
    mpirun.num_processes = plan_.num_processes;
    mpirun.hosts = plan_.hosts;
    mpirun.remote_shell = plan_.remote_shell;
    mpirun.as_root = ::geteuid() == 0;
    mpirun.program = plan_.program;
    mpirun.arguments = {plan_.argv.begin() + 1, plan_.argv.end()};
    for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
      if (std::getenv(variable) != nullptr) {
        mpirun.variables.emplace_back(variable);
      }
    }
    ChildRequest request;
    request.program = find_in_path("mpirun");
    std::vector<std::string> variables;
    if (plan_.hosts.empty()) {
      variables.push_back(
          fmt::format("{}=/proc/{}/fd/{}", kBoardPathVariable, ::getpid(), board_.fd()));
    }
    request.argv = mpirun_command(mpirun);
    request.environment = environment_with(variables);
    Child child;
    child.end.host = host_;
    child.end.pid = start_child(request);
    children_.push_back(std::move(child));
  }

  int num_running() const {
    return static_cast<int>(std::count_if(children_.begin(), children_.end(),
                                          [](const Child& child) { return child.running(); }));
  }

  // Until something happens or is due.
  void wait() const {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      for (const LineForwarder& lines : child.lines) {
        if (lines.open()) {
          fds.push_back({lines.fd(), POLLIN, 0});
        }
      }
    }
    double most_s = under_mpirun_ ? kLookUnderMpirunSeconds : kLookSeconds;
    if (ending_ != Ending::kNo) {
      most_s = std::clamp(deadline_s_ - monotonic_s(), 0.0, most_s);
    }
    ::poll(fds.data(), fds.size(), static_cast<int>(most_s * 1000) + 1);
  }

  void take_signals() {
    while (const int signal = signals_.next()) {
      if (signal == SIGCHLD) {
        continue;
      }
      if (passed_on_ == 0 && ending_ == Ending::kNo) {
        passed_on_ = signal;
        for (Child& child : children_) {
          send(child, signal);
        }
      } else {
        passed_on_ = signal;
        at_once_ = true;
        kill_all();
      }
    }
  }

  void send(Child& child, int signal) {
    if (!child.running()) {
      return;
    }
    if (under_mpirun_) {
      // mpirun itself would give them one second.
      int told = 0;
      for (int process = 0; process < plan_.num_processes; ++process) {
        if (const int pid = board_.pid(process); pid > 0) {
          told += ::kill(pid, signal) == 0 ? 1 : 0;
        }
      }
      if (told == 0) {
        ::kill(child.end.pid, signal);
      }
    } else if (remote()) {
      const std::string_view name = signal == SIGINT ? "INT\n" : "TERM\n";
      const ssize_t ignored = ::write(child.commands.get(), name.data(), name.size());
      static_cast<void>(ignored);  // a connection that is gone ends by itself
    } else {
      ::kill(child.end.pid, signal);
    }
  }

  void take_ends() {
    for (Child& child : children_) {
      siginfo_t info = {};
      if (!child.running() ||
          ::waitid(P_PID, static_cast<id_t>(child.end.pid), &info, WEXITED | WNOHANG | WNOWAIT) !=
              0 ||
          info.si_pid == 0) {
        continue;
      }
      // What it started goes with it; while it is not reaped, the group's number is nobody else's.
      ::kill(-child.end.pid, SIGKILL);
      int status = 0;
      ::waitpid(child.end.pid, &status, 0);
      note_end(child, status);
    }
  }

  void note_end(Child& child, int status) {
    ProcessEnd& end = child.end;
    end.order = num_ended_++;
    end.how = WIFSIGNALED(status) ? How::kSignal : How::kStatus;
    end.value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    if (remote() && end.how == How::kStatus && end.value > 128 && end.value < 128 + NSIG &&
        !is_drained_status(end.value)) {
      end.how = How::kSignal;  // as the shell there tells it
      end.value -= 128;
    }
    const std::vector<ProcessEnd> all = look();
    end.after_a_failure = std::any_of(all.begin(), all.end(), [](const ProcessEnd& other) {
      return other.failure && other.failure->error.code() != ErrorCode::kPeerLost &&
             other.failure->error.code() != ErrorCode::kInterrupted;
    });
    const bool by_passed_on = end.how == How::kSignal && passed_on_ != 0 && end.value == passed_on_;
    if (by_passed_on || at_once_) {
      end.ended_by_us = true;
      drained_status_ = 128 + passed_on_;
    } else if (end.how == How::kStatus && is_drained_status(end.value)) {
      drained_status_ = end.value;
    }
    if (ended_badly(end)) {
      failed_ = true;
    }
    if (failed_ || by_passed_on) {  // others would wait for one that had no time to drain
      begin_ending();
    }
  }

  // Everything that is known of every process.
  std::vector<ProcessEnd> look() const {
    std::vector<ProcessEnd> all;
    std::vector<ProcessEnd> ends;
    for (const Child& child : children_) {
      ends.push_back(child.end);
    }
    if (under_mpirun_) {
      ends = ends_under_mpirun(children_.front().end, board_, gone_);
    }
    for (ProcessEnd& end : ends) {
      end.phase = board_.phase(end.process);
      end.ranks = board_.ranks(end.process);
      end.step = board_.step(end.process);
      end.stages = board_.stages(end.process);
      end.failure = board_.failure(end.process);
      all.push_back(std::move(end));
    }
    return all;
  }

  // A process that told of a failure has ended, for the others, even where it lingers. One under
  // mpirun, whose end mpirun hears of, is gone when its number is.
  void look_at_board() {
    if (failed_ || at_once_) {
      return;
    }
    for (int process = 0; under_mpirun_ && passed_on_ == 0 && process < plan_.num_processes;
         ++process) {
      const int pid = board_.pid(process);
      if (gone_ < 0 && pid > 0 && has_ended(pid) && !board_.failure(process) &&
          board_.phase(process) != JobPhase::kDone) {
        gone_ = process;
        failed_ = true;
        begin_ending();
      }
    }
    for (int process = 0; process < plan_.num_processes; ++process) {
      const std::optional<JobFailure> failure = board_.failure(process);
      if (failure && failure->error.code() != ErrorCode::kInterrupted) {
        failed_ = true;
        begin_ending();
      }
    }
  }

  void begin_ending() {
    if (ending_ != Ending::kNo) {
      return;
    }
    ending_ = Ending::kGrace;
    deadline_s_ = monotonic_s() + plan_.grace_s;
    note_stopped();
    const std::optional<Error> cause = first_cause(look());
    board_.set_stop(cause ? cause->what() : "interrupted");
  }

  // Before they are sent anything, which would change it.
  void note_stopped() {
    for (Child& child : children_) {
      if (child.running() && !remote() && is_stopped(child.end.pid)) {
        child.end.how = How::kStopped;
        stopped_.push_back(child.end);
      }
    }
  }

  void press_on() {
    if (ending_ == Ending::kNo || monotonic_s() < deadline_s_) {
      return;
    }
    if (ending_ == Ending::kGrace) {
      note_stopped();
      for (Child& child : children_) {
        child.end.ended_by_us = child.end.ended_by_us || child.running();
        send(child, SIGTERM);
      }
      ending_ = Ending::kTerm;
      deadline_s_ = monotonic_s() + plan_.term_s;
    } else if (ending_ == Ending::kTerm) {
      kill_all();
    } else {
      kill_groups();
    }
  }

  // Over ssh by closing the connection's input; who does not end by that is the ssh here.
  void kill_all() {
    for (Child& child : children_) {
      child.end.ended_by_us = child.end.ended_by_us || child.running();
      child.commands.close();
    }
    ending_ = Ending::kKill;
    deadline_s_ = monotonic_s() + (remote() ? plan_.grace_s : 0);
    if (!remote()) {
      kill_groups();
    }
  }

  void kill_groups() {
    for (Child& child : children_) {
      if (child.running()) {
        ::kill(-child.end.pid, SIGKILL);
      }
    }
    deadline_s_ = monotonic_s() + kLookSeconds;
  }

  int result() const {
    if (at_once_ && !failed_) {
      return 128 + passed_on_;
    }
    std::vector<ProcessEnd> all = look();
    for (const ProcessEnd& stopped : stopped_) {
      all[stopped.process].how = How::kStopped;
    }
    if (failed_) {
      const std::optional<Error> cause = first_cause(all);
      const ProcessEnd& mpirun = children_.front().end;
      if (under_mpirun_ && gone_ < 0 && mpirun.how == How::kSignal && !mpirun.ended_by_us) {
        throw Error(ErrorCode::kPeerLost,
                    fmt::format("mpirun (pid {}) was killed by signal {}, and with it all "
                                "processes; go on from the last checkpoint with --resume",
                                mpirun.pid, mpirun.value));
      }
      throw cause ? *cause
                  : Error(ErrorCode::kPeerLost,
                          fmt::format("{} ended without a word; what it printed before says why",
                                      describe(all[std::max(gone_, 0)])));
    }
    return drained_status_;
  }

  const LaunchPlan& plan_;
  const bool under_mpirun_ = plan_.engine == "mpi";
  const Signals signals_;  // before the first child
  JobBoard board_;
  const std::string job_id_;
  const std::string host_ = host_name();
  std::vector<HostPlace> places_;  // empty: all here
  std::vector<Child> children_;
  std::vector<ProcessEnd> stopped_;

  int num_ended_ = 0;
  int passed_on_ = 0;  // the signal that the user sent
  bool at_once_ = false;
  bool failed_ = false;
  int gone_ = -1;  // the process under mpirun that ended first without a word
  int drained_status_ = 0;
  Ending ending_ = Ending::kNo;
  double deadline_s_ = 0;
};

}  // namespace

int launch(const LaunchPlan& plan) { return Launcher(plan).run(); }

}  // namespace millrace::cli
