#include "millrace/cli/common/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

Error system_error(const std::string& what, int error_number) {
  return {ErrorCode::kInternal,
          fmt::format("{}: {}", what, std::generic_category().message(error_number))};
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;  // our standard error went away: the job does not end for that
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
}

void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, SIG_DFL);  // fails for those that cannot be, and is right for them
  }
  // A process group of the background may write to the terminal whatever its settings.
  ::signal(SIGTTOU, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// `target` becomes what `source` is; where it is that already, it only survives exec.
bool put(int source, int target) {
  return source == target ? ::fcntl(source, F_SETFD, 0) == 0 : ::dup2(source, target) == target;
}

// In the child, between fork and exec: system calls only. Returns when something failed.
void become(const ChildRequest& request, pid_t parent, char* const* argv, char* const* environment,
            int null_fd) {
  // The second check is for a parent that ended before the first call.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) {
    return;
  }
  ::setpgid(0, 0);
  reset_signals();
  if (!put(request.input_fd >= 0 ? request.input_fd : null_fd, STDIN_FILENO) ||
      (request.output_fd >= 0 && !put(request.output_fd, STDOUT_FILENO)) ||
      (request.error_fd >= 0 && !put(request.error_fd, STDERR_FILENO)) ||
      (request.inherited_fd >= 0 && ::fcntl(request.inherited_fd, F_SETFD, 0) != 0)) {
    return;
  }
  ::execve(request.program.c_str(), argv, environment);
}

constexpr char kNoState = 0;

// As /proc tells it; kNoState: there is no such process.
char state_of(pid_t pid) {
  const Descriptor stat(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> buffer = {};
  const ssize_t bytes = ::read(stat.get(), buffer.data(), buffer.size());
  const std::string_view text(buffer.data(), static_cast<std::size_t>(bytes < 0 ? 0 : bytes));
  // "pid (name) state ...", where the name may hold anything.
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string_view::npos && name_end + 2 < text.size() ? text[name_end + 2]
                                                                          : kNoState;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

Pipe make_pipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw system_error("cannot make a pipe", errno);
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void set_nonblocking(const Descriptor& descriptor) {
  ::fcntl(descriptor.get(), F_SETFL, ::fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

pid_t start_child(const ChildRequest& request) {
  std::vector<std::string> arguments = request.argv;
  std::vector<std::string> variables = request.environment;
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> environment = pointers_to(variables);
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe failed = make_pipe();  // closed by exec; else brings errno
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw system_error(fmt::format("cannot start {}", request.program), errno);
  }
  if (pid == 0) {
    become(request, parent, argv.data(), environment.data(), null.get());
    const int error_number = errno;
    const ssize_t ignored = ::write(failed.write.get(), &error_number, sizeof error_number);
    ::_exit(ignored < 0 ? 126 : 127);
  }
  failed.write.close();
  int error_number = 0;
  ssize_t bytes = 0;
  do {
    bytes = ::read(failed.read.get(), &error_number, sizeof error_number);
  } while (bytes < 0 && errno == EINTR);
  if (bytes > 0) {
    ::waitpid(pid, nullptr, 0);
    throw system_error(fmt::format("cannot start {}", request.program), error_number);
  }
  return pid;
}

bool is_stopped(pid_t pid) {
  const char state = state_of(pid);
  return state == 'T' || state == 't';
}

bool has_ended(pid_t pid) {
  const char state = state_of(pid);
  return state == 'Z' || state == 'X' || state == kNoState;
}

LineForwarder::LineForwarder(Descriptor source, std::string prefix)
    : source_(std::move(source)), prefix_(std::move(prefix)) {
  set_nonblocking(source_);
}

void LineForwarder::forward() {
  constexpr std::size_t kLongestLine = 1 << 16;
  std::array<char, 1 << 14> buffer = {};
  while (source_.open()) {
    const ssize_t bytes = ::read(source_.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) {
      continue;
    }
    if (bytes < 0 && errno == EAGAIN) {
      return;
    }
    if (bytes <= 0) {
      finish();
      return;
    }
    rest_.append(buffer.data(), static_cast<std::size_t>(bytes));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos;) {
      write_line(std::string_view(rest_).substr(begin, end - begin));
      begin = end + 1;
    }
    rest_.erase(0, begin);
    if (rest_.size() > kLongestLine) {
      write_line(std::exchange(rest_, ""));
    }
  }
}

void LineForwarder::finish() {
  if (!source_.open()) {
    return;
  }
  Descriptor last = std::move(source_);
  source_ = Descriptor();
  std::array<char, 1 << 14> buffer = {};
  for (ssize_t bytes = 0; (bytes = ::read(last.get(), buffer.data(), buffer.size())) > 0;) {
    rest_.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  while (!rest_.empty()) {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    write_line(std::string_view(rest_).substr(0, end));
    rest_.erase(0, end + 1);
  }
}

// One call a line, so that lines of several processes do not mix.
void LineForwarder::write_line(std::string_view line) {
  write_all(STDERR_FILENO, fmt::format("{}{}\n", prefix_, line));
}

}  // namespace millrace::cli
