#include "millrace/cli/common/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
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
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/first_cause.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using How = ProcessEnd::How;

// How often the board is looked at for a process that failed but does not end.
constexpr double kLookSeconds = 0.5;

// Blocks the signals that a launcher waits for and offers them as a descriptor; as before when it
// goes.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGCHLD);
    for (int signal : {SIGINT, SIGTERM}) {
      struct sigaction action = {};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) {  // such as SIGINT of a job in the background
        ::sigaddset(&set_, signal);
      }
    }
    // Where it is ignored, ends of children are not kept.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &old_child_);
    ::sigprocmask(SIG_BLOCK, &set_, &old_mask_);
    fd_ = Descriptor(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() {
    ::sigaction(SIGCHLD, &old_child_, nullptr);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  // The next one that arrived, 0 for none.
  int next() const {
    signalfd_siginfo info = {};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t set_ = {};
  sigset_t old_mask_ = {};
  struct sigaction old_child_ = {};
  Descriptor fd_;
};

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// Nobody guesses it, so that a process of another job is never taken for one of this.
std::string new_job_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Our environment with some variables of its own.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced =
        text.substr(0, 9) == "MILLRACE_" &&
        (name == "MILLRACE_BOARD_FD=" ||
         std::any_of(variables.begin(), variables.end(), [&](const std::string& variable) {
           return std::string_view(variable).substr(0, name.size()) == name;
         }));
    if (!replaced) {
      environment.emplace_back(text);
    }
  }
  return environment;
}

std::string find_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return program;
  }
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    std::string candidate = fmt::format("{}/{}", folder, program);
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("starting processes on other hosts needs {}, which is not in PATH; "
                          "apt-get install openssh-client",
                          program));
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
    if (!plan_.hosts.empty()) {
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
    for (int process = 0; process < plan_.num_processes; ++process) {
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
    double most_s = kLookSeconds;
    if (ending_ != Ending::kNo) {
      most_s = std::clamp(deadline_s_ - monotonic_s(), 0.0, kLookSeconds);
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
    if (remote()) {
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
    for (const Child& child : children_) {
      ProcessEnd end = child.end;
      end.phase = board_.phase(end.process);
      end.ranks = board_.ranks(end.process);
      end.step = board_.step(end.process);
      end.stages = board_.stages(end.process);
      end.failure = board_.failure(end.process);
      all.push_back(std::move(end));
    }
    return all;
  }

  // A process that told of a failure has ended, for the others, even where it lingers.
  void look_at_board() {
    if (failed_ || at_once_) {
      return;
    }
    for (const Child& child : children_) {
      const std::optional<JobFailure> failure = board_.failure(child.end.process);
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
      throw first_cause(all).value();
    }
    return drained_status_;
  }

  const LaunchPlan& plan_;
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
  int drained_status_ = 0;
  Ending ending_ = Ending::kNo;
  double deadline_s_ = 0;
};

}  // namespace

int launch(const LaunchPlan& plan) { return Launcher(plan).run(); }

}  // namespace millrace::cli
