#include "millrace/core/action.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

struct KindName {
  ActionKind kind;
  const char* name;
};

constexpr std::array<KindName, 13> kKinds = {{
    {ActionKind::kForward, "F"},
    {ActionKind::kBackward, "B"},
    {ActionKind::kInputGradient, "I"},
    {ActionKind::kWeightGradient, "W"},
    {ActionKind::kSendForward, "SEND_F"},
    {ActionKind::kReceiveForward, "RECV_F"},
    {ActionKind::kSendBackward, "SEND_B"},
    {ActionKind::kReceiveBackward, "RECV_B"},
    {ActionKind::kReduce, "REDUCE"},
    {ActionKind::kNorm, "NORM"},
    {ActionKind::kStep, "STEP"},
    {ActionKind::kGather, "GATHER"},
    {ActionKind::kFree, "FREE"},
}};

// Reads one action from the left; every failure says what stood where.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Action parse() {
    Action action;
    action.stage = number<int32_t>("a stage number");
    action.kind = kind();
    const bool must_have =
        is_compute(action.kind) || is_send(action.kind) || is_receive(action.kind);
    if (must_have || starts_with_digit()) {
      action.first = number<int64_t>("a microbatch number");
      action.last = action.first;
      if (take('-')) {
        action.last = number<int64_t>("the last microbatch of a range");
        if (action.last < action.first) {
          fail("a range that does not go backwards");
        }
      }
    }
    if (is_send(action.kind)) {
      action.peer = peer('>', "`>` and the rank that it sends to");
    } else if (is_receive(action.kind)) {
      action.peer = peer('<', "`<` and the rank that it receives from");
    }
    if (action.peer != kNone) {
      action.peer_stage =
          take(':') ? number<int32_t>("a stage number") : next_stage(action.kind, action.stage);
    }
    if (take('@')) {
      action.version = number<int64_t>("a weight version");
    }
    if (!rest_.empty()) {
      fail("nothing more");
    }
    return action;
  }

 private:
  bool starts_with_digit() const { return !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9'; }

  bool take(char c) {
    if (rest_.empty() || rest_[0] != c) {
      return false;
    }
    rest_.remove_prefix(1);
    return true;
  }

  template <typename T>
  T number(const char* expected) {
    // from_chars alone would take a minus sign.
    if (!starts_with_digit()) {
      fail(expected);
    }
    T value = 0;
    const auto result = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (result.ec != std::errc()) {
      fail(std::string(expected) + " that fits its type");
    }
    rest_.remove_prefix(static_cast<std::size_t>(result.ptr - rest_.data()));
    return value;
  }

  ActionKind kind() {
    std::size_t length = 0;
    while (length < rest_.size() &&
           ((rest_[length] >= 'A' && rest_[length] <= 'Z') || rest_[length] == '_')) {
      ++length;
    }
    const std::string_view name = rest_.substr(0, length);
    for (const KindName& entry : kKinds) {
      if (name == entry.name) {
        rest_.remove_prefix(length);
        return entry.kind;
      }
    }
    fail("one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE, NORM, STEP");
  }

  int32_t peer(char mark, const char* expected) {
    if (!take(mark)) {
      fail(expected);
    }
    return number<int32_t>("a rank number");
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is not an action: at character {} expected {}, found {}; an action "
                            "looks like 2F0, 2B0-3, 2SEND_F0>1, 2RECV_B0<3 or 2STEP@4",
                            in_quotes(text_), text_.size() - rest_.size() + 1, expected,
                            rest_.empty() ? "the end" : in_quotes(rest_)));
  }

  std::string_view text_;
  std::string_view rest_;
};

}  // namespace

Action Action::of(ActionKind kind, int stage, int64_t microbatch) {
  return range(kind, stage, microbatch, microbatch);
}

Action Action::range(ActionKind kind, int stage, int64_t first, int64_t last) {
  Action action;
  action.kind = kind;
  action.stage = stage;
  action.first = first;
  action.last = last;
  return action;
}

int32_t next_stage(ActionKind kind, int32_t stage) {
  using Limits = std::numeric_limits<int32_t>;
  if (stage == Limits::min() || stage == Limits::max()) {
    return stage;  // of a damaged list
  }
  return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveBackward ? stage + 1
                                                                                  : stage - 1;
}

bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kInputGradient || kind == ActionKind::kWeightGradient;
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}

const char* to_string(ActionKind kind) {
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) {
      return entry.name;
    }
  }
  return "?";
}

std::string to_string(const Action& action) {
  std::string text = fmt::format("{}{}", action.stage, to_string(action.kind));
  if (action.first != kNone) {
    text += fmt::format("{}", action.first);
    if (action.last != action.first) {
      text += fmt::format("-{}", action.last);
    }
  }
  if (action.peer != kNone && (is_send(action.kind) || is_receive(action.kind))) {
    text += fmt::format("{}{}", is_send(action.kind) ? '>' : '<', action.peer);
    if (action.peer_stage != next_stage(action.kind, action.stage)) {
      text += fmt::format(":{}", action.peer_stage);
    }
  }
  if (action.version != kNone) {
    text += fmt::format("@{}", action.version);
  }
  return text;
}

Action parse_action(std::string_view text) { return Parser(text).parse(); }

std::string to_string(const ActionList& list) {
  std::string text;
  for (const Action& action : list) {
    if (!text.empty()) {
      text += ' ';
    }
    text += to_string(action);
  }
  return text;
}

ActionList parse_actions(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  ActionList list;
  std::size_t begin = text.find_first_not_of(kBlank);
  while (begin != std::string_view::npos) {
    const std::size_t end = text.find_first_of(kBlank, begin);
    list.push_back(parse_action(text.substr(begin, end - begin)));
    begin = end == std::string_view::npos ? end : text.find_first_not_of(kBlank, end);
  }
  return list;
}

}  // namespace millrace
