// One process that the launcher starts: its descriptors, its end, and the lines that it prints.
// Linux only, as all of the launcher. One thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::cli {

// Owns a descriptor. Never throws.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};
// Both ends close on exec. Throws Error(kInternal).
Pipe make_pipe();
void set_nonblocking(const Descriptor& descriptor);

struct ChildRequest {
  std::string program;            // a path, not looked for
  std::vector<std::string> argv;  // with argv[0]
  std::vector<std::string> environment;
  // What becomes its standard streams; -1: /dev/null for input, ours for the others.
  int input_fd = -1;
  int output_fd = -1;
  int error_fd = -1;
  int inherited_fd = -1;  // stays open over exec
};

// Starts it in a process group of its own, with no signal blocked and all handled by default. It
// dies with this process (and with the thread that calls this, which therefore must be the main
// one). Throws Error(kInternal) that names the program when it cannot be started.
pid_t start_child(const ChildRequest& request);

// Whether the process is stopped by a signal just now.
bool is_stopped(pid_t pid);
// Whether it has ended, reaped or not; of any process of this machine.
bool has_ended(pid_t pid);

// Passes on what comes out of a pipe to our standard error, line by line, each behind a prefix.
class LineForwarder {
 public:
  LineForwarder(Descriptor source, std::string prefix);

  int fd() const { return source_.get(); }
  bool open() const { return source_.open(); }
  // All that is there now, without waiting. Closes at the end.
  void forward();
  // All that is there, a last line without its end too; then closes.
  void finish();

 private:
  void write_line(std::string_view line);

  Descriptor source_;
  std::string prefix_;
  std::string rest_;
};

}  // namespace millrace::cli
