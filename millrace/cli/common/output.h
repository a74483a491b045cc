// What the programs print, and how they end. Human text goes to stdout, or to stderr with --json, when stdout holds JSON only.
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
  void text(const std::string& text);     // as it is, for people
  void line(const Value& value);          // one JSON object a line; only with --json
  void document(const Value& value);      // the one JSON answer of a command; only with --json

  // A line that replaces itself on a terminal (progress); plain lines, at most one a few seconds, elsewhere.
  void progress(const std::string& text);
  void end_progress();
  bool terminal() const { return terminal_; }

 private:
  bool json_;
  bool terminal_;
  std::string last_;
  double last_plain_s_ = -1e9;
};

// {"error": {"code", "message", "file", "line", "key", "rank", "stage", "microbatch", "action"}}, absent fields left out.
Value to_value(const Error& error);

int exit_status_of(const Error& error);  // 0 done; 1 failed; 2 the input is wrong; 130/143 by the signal

// Runs a command; an exception becomes one line on stderr ("millrace: ...", or the JSON error on stdout with --json)
// and an exit status.
int guarded(bool json, const std::function<int()>& command);

}  // namespace millrace::cli
