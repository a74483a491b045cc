#include "millrace/base/error.h"

#include <fmt/format.h>

namespace millrace {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid-argument";
    case ErrorCode::kBadFile:
      return "bad-file";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNoSpace:
      return "no-space";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer-lost";
    case ErrorCode::kOutOfMemory:
      return "out-of-memory";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {
  compose();
}

Error& Error::in_file(std::string file, int line) {
  file_ = std::move(file);
  line_.reset();
  if (line > 0) {
    line_ = line;
  }
  compose();
  return *this;
}

Error& Error::at_key(std::string key) {
  key_ = std::move(key);
  compose();
  return *this;
}

Error& Error::at_rank(int rank) {
  rank_ = rank;
  compose();
  return *this;
}

Error& Error::at_stage(int stage) {
  stage_ = stage;
  compose();
  return *this;
}

Error& Error::at_microbatch(int64_t microbatch) {
  microbatch_ = microbatch;
  compose();
  return *this;
}

Error& Error::at_action(std::string action) {
  action_ = std::move(action);
  compose();
  return *this;
}

void Error::compose() {
  std::string text;
  if (file_) {
    text += *file_;
    if (line_) {
      text += fmt::format(":{}", *line_);
    }
    text += ": ";
  }
  if (key_ && !key_->empty()) {
    text += *key_ + ": ";
  }

  std::string place;
  const auto add = [&place](const char* name, const auto& value) {
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", name, value);
  };
  if (rank_) {
    add("rank", *rank_);
  }
  if (stage_) {
    add("stage", *stage_);
  }
  if (microbatch_) {
    add("microbatch", *microbatch_);
  }
  if (action_) {
    add("action", *action_);
  }

  // A message may go on with a grid on further lines; the coordinates belong to its first.
  const std::size_t first_line = message_.find('\n');
  text += message_.substr(0, first_line);
  if (!place.empty()) {
    text += " (" + place + ")";
  }
  if (first_line != std::string::npos) {
    text += message_.substr(first_line);
  }
  what_ = std::move(text);
}

namespace internal {

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  throw Error(
      ErrorCode::kInternal,
      fmt::format("this is a bug in Millrace, please report it: check `{}` failed at {}:{}{}{}",
                  condition, file, line, detail.empty() ? "" : ": ", detail));
}

}  // namespace internal
}  // namespace millrace
