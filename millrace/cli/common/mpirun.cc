#include "millrace/cli/common/mpirun.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::cli {

std::vector<std::string> mpirun_command(const MpirunPlan& plan) {
  std::vector<std::string> command = {"mpirun", "--oversubscribe", "--bind-to", "none"};
  if (plan.as_root) {
    command.emplace_back("--allow-run-as-root");
  }
  if (!plan.hosts.empty()) {
    std::vector<std::string> hosts;
    for (const Host& host : plan.hosts) {
      hosts.push_back(fmt::format("{}:{}", host.name, host.slots));
    }
    command.insert(command.end(),
                   {"--host", join(hosts, ","), "--mca", "plm_rsh_agent", plan.remote_shell});
  }
  for (const std::string& variable : plan.variables) {
    command.insert(command.end(), {"-x", variable});
  }
  command.insert(command.end(), {"-n", std::to_string(plan.num_processes), plan.program});
  command.insert(command.end(), plan.arguments.begin(), plan.arguments.end());
  return command;
}

std::vector<ProcessEnd> ends_under_mpirun(const ProcessEnd& mpirun, const JobBoard& board,
                                          int gone) {
  using How = ProcessEnd::How;
  std::vector<ProcessEnd> ends;
  for (int process = 0; process < board.num_processes(); ++process) {
    ProcessEnd end = mpirun;
    end.process = process;
    end.pid = board.pid(process);
    const bool told = board.failure(process) || board.phase(process) == JobPhase::kDone;
    const bool others_fault = gone >= 0 && process != gone;
    if (mpirun.how != How::kRunning && mpirun.how != How::kStopped && (told || others_fault)) {
      end.how = How::kStatus;
      end.value = 0;
    }
    if (process == gone && mpirun.how == How::kStatus && mpirun.value > 128 &&
        !is_drained_status(mpirun.value)) {
      end.how = How::kSignal;
      end.value = mpirun.value - 128;
    }
    ends.push_back(std::move(end));
  }
  return ends;
}

std::optional<JobBoard> open_board(const WorldPlace& place, const GetVariable& get) {
  if (place.board_fd >= 0) {
    return JobBoard::attach(place.board_fd);
  }
  const char* path = get(kBoardPathVariable);
  if (path == nullptr || *path == '\0') {
    return std::nullopt;
  }
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  // An mpirun that ended before the call left this process to another parent.
  if (fd < 0 || ::getppid() != parent) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected the job board of the launcher, found none at {}: the "
                            "launcher has ended, or {} is left over from one; unset it",
                            in_quotes(path), kBoardPathVariable));
  }
  try {
    return JobBoard::attach(fd);
  } catch (const Error&) {
    ::close(fd);
    throw;
  }
}

}  // namespace millrace::cli
