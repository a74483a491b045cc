#include "millrace/cli/common/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <new>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/file.h"

namespace millrace::cli {
namespace {

constexpr double kPlainProgressSeconds = 5;

// Straight to the descriptor, so that a failure is known when it happens and not at exit. Returns 0
// or the errno of what failed; a reader that went away is no failure.
int write_to(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN) {  // a pipe that somebody else made non-blocking
        pollfd wait = {fd, POLLOUT, 0};
        ::poll(&wait, 1, -1);
        continue;
      }
      return errno == EPIPE ? 0 : errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

void write_or_throw(int fd, std::string_view text) {
  if (const int error_number = write_to(fd, text); error_number != 0) {
    throw_write_error(fd == STDOUT_FILENO ? "standard output" : "standard error", error_number);
  }
}

// Cut to one row of the terminal, since a carriage return does not reach above it.
std::string fit_row(const std::string& text, int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) {
    return text;
  }
  return text.substr(0, static_cast<std::size_t>(size.ws_col - 1));
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

int fail(bool json, const Error& error) {
  print_error(json, error);
  return exit_status_of(error);
}

}  // namespace

Output::Output(bool json) : json_(json), terminal_(::isatty(human_fd()) != 0) {}

void Output::write(int fd, const std::string& text) {
  if (!silent_) {
    write_or_throw(fd, text);
  }
}

int Output::human_fd() const { return json_ ? STDERR_FILENO : STDOUT_FILENO; }

void Output::text(const std::string& text) {
  end_progress();
  write(human_fd(), text);
}

void Output::line(const Value& value) {
  if (json_) {
    end_progress();
    write(STDOUT_FILENO, to_json(value, -1) + "\n");
  }
}

void Output::document(const Value& value) {
  if (json_) {
    end_progress();
    write(STDOUT_FILENO, to_json(value) + "\n");
  }
}

void Output::answer(const std::string& raw) {
  end_progress();
  write(STDOUT_FILENO, raw);
}

void Output::progress(const std::string& text) {
  if (terminal_) {
    if (text != last_) {
      write(human_fd(), "\r" + fit_row(text, human_fd()) + "\x1b[K");
      last_ = text;
    }
    return;
  }
  const double now_s = monotonic_s();
  if (now_s - last_plain_s_ >= kPlainProgressSeconds) {
    write(human_fd(), text + "\n");
    last_plain_s_ = now_s;
  }
}

void Output::end_progress() {
  if (!last_.empty()) {
    last_.clear();
    write(human_fd(), "\n");
  }
}

Value to_value(const Error& error) {
  Value fields = Value::map();
  fields.set("code", Value::of(to_string(error.code())));
  fields.set("message", Value::of(error.message()));
  if (error.file()) {
    fields.set("file", Value::of(*error.file()));
  }
  if (error.line()) {
    fields.set("line", Value::of(*error.line()));
  }
  if (error.key() && !error.key()->empty()) {
    fields.set("key", Value::of(*error.key()));
  }
  if (error.rank()) {
    fields.set("rank", Value::of(*error.rank()));
  }
  if (error.stage()) {
    fields.set("stage", Value::of(*error.stage()));
  }
  if (error.microbatch()) {
    fields.set("microbatch", Value::of(*error.microbatch()));
  }
  if (error.action()) {
    fields.set("action", Value::of(*error.action()));
  }
  Value root = Value::map();
  root.set("error", std::move(fields));
  return root;
}

int exit_status_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kBadFile:
    case ErrorCode::kUnsupported:
      return 2;
    case ErrorCode::kInterrupted:
      return 128 + SIGINT;
    case ErrorCode::kNoSpace:
    case ErrorCode::kTimeout:
    case ErrorCode::kPeerLost:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kInternal:
      return 1;
  }
  return 1;
}

void print_error(bool json, const Error& error) noexcept {
  try {
    if (json && write_to(STDOUT_FILENO, to_json(to_value(error), -1) + "\n") == 0) {
      return;
    }
    write_to(STDERR_FILENO, fmt::format("millrace: {}\n", error.what()));
  } catch (...) {
    write_to(STDERR_FILENO, "millrace: out of memory\n");
  }
}

int guarded(bool json, const std::function<int()>& command) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return command();
  } catch (const Error& error) {
    return fail(json, error);
  } catch (const std::bad_alloc&) {
    return fail(json, Error(ErrorCode::kOutOfMemory,
                            "out of memory; use a smaller batch, model or schedule"));
  } catch (const std::exception& error) {
    // Libraries below us append stack dumps; their first line says what happened.
    return fail(json, Error(ErrorCode::kInternal, first_line(error.what())));
  }
}

}  // namespace millrace::cli
