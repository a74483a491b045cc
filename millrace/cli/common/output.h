// What the programs print, and how they end. Human text goes to stdout, or to stderr with --json,
// when stdout holds JSON only.
//
// A reader that went away (`millrace list | head -1`) ends the printing, not the command. Any other
// failure to print is an error: kNoSpace on a full disk.
#pragma once

#include <functional>
#include <string>

#include "millrace/base/document.h"
#include "millrace/base/error.h"

namespace millrace::cli {

class Output {
 public:
  explicit Output(bool json);

  bool json() const { return json_; }
  void text(const std::string& text);   // as it is, for people
  void line(const Value& value);        // one JSON object a line; only with --json
  void document(const Value& value);    // the one JSON answer of a command; only with --json
  void answer(const std::string& raw);  // to stdout whatever the mode: a drawing that was asked for

  // A line that replaces itself on a terminal (progress); plain lines, at most one a few seconds,
  // elsewhere. The other calls end it first.
  void progress(const std::string& text);
  void end_progress();
  bool terminal() const { return terminal_; }

  // Prints nothing from now on: of several processes, one speaks.
  void silence() { silent_ = true; }

 private:
  int human_fd() const;

  // What all calls end in.
  void write(int fd, const std::string& text);

  bool json_;
  bool terminal_;
  bool silent_ = false;
  std::string last_;
  double last_plain_s_ = -1e9;
};

// {"error": {"code", "message", "file", "line", "key", "rank", "stage", "microbatch", "action"}},
// absent fields left out.
Value to_value(const Error& error);

// 1 failed; 2 the input is wrong; 130 interrupted (a command that knows its signal returns 128 plus
// that itself).
int exit_status_of(const Error& error);

// Prints an error: "millrace: ..." on stderr, or the JSON error on stdout. Never throws.
void print_error(bool json, const Error& error) noexcept;

// Runs a command; an exception becomes one line on stderr ("millrace: ...", or the JSON error on
// stdout with --json) and an exit status. A schedule's findings bring their grid on further lines.
// Ignores SIGPIPE from then on.
int guarded(bool json, const std::function<int()>& command);

}  // namespace millrace::cli
