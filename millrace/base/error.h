// The one error type of Millrace: what went wrong, where, and what to do.
//
// Thrown by every library folder, turned into one line (or one JSON object) and an exit status by
// `cli`. Values are immutable once thrown; any thread may throw.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace millrace {

enum class ErrorCode {
  kInvalidArgument,  // the user's input cannot be used: exit status 2
  kBadFile,          // a file is missing, damaged or of the wrong form: exit status 2
  kUnsupported,      // valid, but not offered; the message says by what and what is: exit status 2
  kNoSpace,          // writing failed for want of space or quota: exit status 1
  kTimeout,          // a wait reached its deadline: exit status 1
  kPeerLost,         // another rank ended; the group cannot go on: exit status 1
  kOutOfMemory,      // exit status 1
  kInterrupted,      // a signal asked the run to end: exit status 130 or 143
  kInternal,         // a bug of ours: exit status 1
};

// Stable text of a code, as printed in JSON: "invalid-argument", "bad-file", ...
const char* to_string(ErrorCode code);

// A message says what was expected, what was found, and what to do. Coordinates are optional and
// are appended by what(): "plan.json:12: stages[1].layers: ... (rank 3, stage 1, microbatch 7)".
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  // Each returns *this with one coordinate added, so that `throw Error(...).at_rank(3)` reads well.
  Error& in_file(std::string file, int line = 0);
  Error& at_key(std::string key);
  Error& at_rank(int rank);
  Error& at_stage(int stage);
  Error& at_microbatch(int64_t microbatch);
  Error& at_action(std::string action);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::optional<std::string>& file() const { return file_; }
  std::optional<int> line() const { return line_; }
  const std::optional<std::string>& key() const { return key_; }
  std::optional<int> rank() const { return rank_; }
  std::optional<int> stage() const { return stage_; }
  std::optional<int64_t> microbatch() const { return microbatch_; }
  const std::optional<std::string>& action() const { return action_; }

  // One line: file, line, key, message, coordinates.
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  void compose();

  ErrorCode code_;
  std::string message_;
  std::optional<std::string> file_;
  std::optional<int> line_;
  std::optional<std::string> key_;
  std::optional<int> rank_;
  std::optional<int> stage_;
  std::optional<int64_t> microbatch_;
  std::optional<std::string> action_;
  std::string what_;
};

namespace internal {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& detail);
}  // namespace internal

}  // namespace millrace

// For our own bugs only, never for user input: throws Error(kInternal).
#define MILLRACE_CHECK(condition, ...)                                   \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ::millrace::internal::check_failed(#condition, __FILE__, __LINE__, \
                                         ::std::string{__VA_ARGS__});    \
    }                                                                    \
  } while (false)
