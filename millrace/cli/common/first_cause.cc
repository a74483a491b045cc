#include "millrace/cli/common/first_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>

namespace millrace::cli {
namespace {

using How = ProcessEnd::How;

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal)
                         : fmt::format("signal {} ({})", signal, name);
}

// " while training, after step 120"
std::string when(const ProcessEnd& end) {
  std::string text = fmt::format(" while {}", to_string(end.phase));
  if (end.step) {
    text += fmt::format(", after step {}", *end.step);
  }
  return text;
}

// What a person can do about a cause that is not in the program's input.
std::string go_on(const ProcessEnd& end) {
  return end.step ? "; go on from the last checkpoint with --resume" : "";
}

bool is_about_others(ErrorCode code) {
  return code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout ||
         code == ErrorCode::kInterrupted;
}

const ProcessEnd* first_of(const std::vector<ProcessEnd>& ends,
                           const std::function<bool(const ProcessEnd&)>& is_candidate,
                           const std::function<int64_t(const ProcessEnd&)>& order) {
  const ProcessEnd* first = nullptr;
  for (const ProcessEnd& end : ends) {
    if (is_candidate(end) && (first == nullptr || order(end) < order(*first))) {
      first = &end;
    }
  }
  return first;
}

int64_t seen_order(const ProcessEnd& end) { return end.order; }
int64_t told_order(const ProcessEnd& end) { return end.failure->order; }

Error at_its_rank(Error error, const ProcessEnd& end) {
  if (end.ranks && end.ranks->first == end.ranks->second) {
    error.at_rank(end.ranks->first);
  }
  return error;
}

Error killed(const ProcessEnd& end) {
  const char* perhaps = end.value == SIGKILL ? ", by hand or by the system for want of memory" : "";
  return at_its_rank(
      {ErrorCode::kPeerLost, fmt::format("{} was killed by {}{}{}{}", describe(end),
                                         signal_name(end.value), perhaps, when(end), go_on(end))},
      end);
}

Error told(const ProcessEnd& end) {
  const Error& its = end.failure->error;
  Error error(its.code(), fmt::format("{} failed{}: {}", describe(end), when(end), its.message()));
  if (its.file()) {
    error.in_file(*its.file(), its.line().value_or(0));
  }
  if (its.key()) {
    error.at_key(*its.key());
  }
  if (its.rank()) {
    error.at_rank(*its.rank());
  }
  if (its.stage()) {
    error.at_stage(*its.stage());
  }
  if (its.microbatch()) {
    error.at_microbatch(*its.microbatch());
  }
  if (its.action()) {
    error.at_action(*its.action());
  }
  return error;
}

Error stopped(const ProcessEnd& end) {
  return at_its_rank(
      {ErrorCode::kPeerLost, fmt::format("{} is stopped by a signal{}, and others waited for it{}",
                                         describe(end), when(end), go_on(end))},
      end);
}

// Status 2 means that the input is wrong, and so it stays.
Error silent(const ProcessEnd& end) {
  const ErrorCode code = end.value == 2 ? ErrorCode::kInvalidArgument : ErrorCode::kInternal;
  const bool no_connection = end.by_ssh && end.value == 255;
  return at_its_rank(
      {code,
       fmt::format("{} ended with status {}{}; {}", describe(end), end.value, when(end),
                   no_connection ? "that is ssh's own: it could not connect, or lost the connection"
                                 : "what it printed before says why")},
      end);
}

}  // namespace

bool is_drained_status(int status) { return status == 128 + SIGINT || status == 128 + SIGTERM; }

bool ended_badly(const ProcessEnd& end) {
  if (end.how == How::kSignal) {
    return !end.ended_by_us;
  }
  return end.how == How::kStatus && end.value != 0 && !is_drained_status(end.value);
}

std::string describe(const ProcessEnd& end) {
  std::string text = fmt::format("process {} (", end.process);
  if (!end.by_ssh) {
    text += fmt::format("pid {}, ", end.pid);
  }
  if (end.ranks) {
    const auto& [first, last] = *end.ranks;
    text += first == last ? fmt::format("rank {}, ", first)
                          : fmt::format("ranks {} to {}, ", first, last);
  }
  text += "host " + end.host;
  if (!end.stages.empty()) {
    text += ", " + end.stages;
  }
  return text + ")";
}

std::optional<Error> first_cause(const std::vector<ProcessEnd>& ends) {
  const auto with_code = [](const std::function<bool(ErrorCode)>& fits) {
    return [fits](const ProcessEnd& end) { return end.failure && fits(end.failure->error.code()); };
  };
  const auto is_killed = [](const ProcessEnd& end) {
    return end.how == How::kSignal && ended_badly(end) &&
           !(end.value == SIGABRT && (end.after_a_failure || end.failure));
  };
  if (const ProcessEnd* end = first_of(ends, is_killed, seen_order)) {
    return killed(*end);
  }
  const auto own = with_code([](ErrorCode code) { return !is_about_others(code); });
  if (const ProcessEnd* end = first_of(ends, own, told_order)) {
    return told(*end);
  }
  const auto waited = with_code([](ErrorCode code) { return code == ErrorCode::kTimeout; });
  const auto lost = with_code([](ErrorCode code) { return code == ErrorCode::kPeerLost; });
  const bool in_vain = std::any_of(ends.begin(), ends.end(), [&](const ProcessEnd& end) {
    return waited(end) || lost(end) || ended_badly(end);
  });
  const auto is_stopped = [](const ProcessEnd& end) { return end.how == How::kStopped; };
  if (const ProcessEnd* end = first_of(ends, is_stopped, seen_order); end != nullptr && in_vain) {
    return stopped(*end);
  }
  const auto is_silent = [](const ProcessEnd& end) {
    return end.how == How::kStatus && ended_badly(end) && !end.failure;
  };
  if (const ProcessEnd* end = first_of(ends, is_silent, seen_order)) {
    return silent(*end);
  }
  for (const auto& about_others : {waited, lost}) {
    if (const ProcessEnd* end = first_of(ends, about_others, told_order)) {
      return told(*end);
    }
  }
  // Fell over in a way that the above takes for a consequence, of nothing that anybody told.
  if (const ProcessEnd* end = first_of(ends, ended_badly, seen_order)) {
    return end->how == How::kSignal ? killed(*end) : silent(*end);
  }
  return std::nullopt;
}

}  // namespace millrace::cli
