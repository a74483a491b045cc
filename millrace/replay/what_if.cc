#include "millrace/replay/what_if.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

using Subject = WhatIf::Subject;
using Quantity = WhatIf::Quantity;

Error wrong(const std::string& text, const std::string& message) {
  return {ErrorCode::kInvalidArgument, fmt::format("--set {}: {}", text, message)};
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const WhatIfKey& key : what_if_keys()) {
    keys.push_back(key.key);
  }
  return keys;
}

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// "rank3" after "rank" -> 3.
std::optional<int> numbered(const std::string& word, std::string_view name) {
  if (!word.starts_with(name)) {
    return std::nullopt;
  }
  const std::optional<int> value = number<int>(std::string_view(word).substr(name.size()));
  return value && *value >= 0 ? value : std::nullopt;
}

// The subject that a word names; false when none.
bool find_subject(const std::string& word, WhatIf& what_if) {
  const std::pair<const char*, Subject> plain[] = {{"link", Subject::kAllLinks},
                                                   {"message", Subject::kMessages},
                                                   {"reduce", Subject::kReductions},
                                                   {"device", Subject::kDevices}};
  for (const auto& [name, subject] : plain) {
    if (word == name) {
      what_if.subject = subject;
      return true;
    }
  }
  if (const std::optional<int> rank = numbered(word, "rank")) {
    what_if.subject = Subject::kRank;
    what_if.first = *rank;
    return true;
  }
  if (const std::optional<int> stage = numbered(word, "stage")) {
    what_if.subject = Subject::kStage;
    what_if.first = *stage;
    return true;
  }
  const std::size_t dash = word.find('-');
  if (dash != std::string::npos) {
    const std::optional<int> from = numbered(word.substr(0, dash), "link");
    const std::optional<int> to = numbered(word.substr(dash + 1), "");
    if (from && to) {
      what_if.subject = Subject::kPair;
      what_if.first = *from;
      what_if.second = *to;
      return true;
    }
  }
  return false;
}

bool is_of_links(Subject subject) {
  return subject == Subject::kAllLinks || subject == Subject::kMessages ||
         subject == Subject::kReductions || subject == Subject::kPair;
}

void read_value(const std::string& value, WhatIf& what_if) {
  what_if.is_factor = !value.empty() && value[0] == 'x';
  const std::optional<double> read =
      number<double>(std::string_view(value).substr(what_if.is_factor ? 1 : 0));
  const bool zero_is_fine = what_if.quantity == Quantity::kLatency;
  if (!read || !std::isfinite(*read) || *read < 0 || (*read == 0 && !zero_is_fine)) {
    throw wrong(what_if.text,
                fmt::format("expected a factor such as x2 or x0.5{}, found {}",
                            what_if.quantity == Quantity::kSpeed       ? ""
                            : what_if.quantity == Quantity::kBandwidth ? ", or bytes per second"
                                                                       : ", or seconds",
                            in_quotes(value)));
  }
  if (!what_if.is_factor && what_if.quantity == Quantity::kSpeed) {
    throw wrong(what_if.text,
                fmt::format("a speed is a factor over the recorded one; say x{}", value));
  }
  what_if.value = *read;
}

double changed_latency(double latency_s, const WhatIf& what_if) {
  return what_if.is_factor ? latency_s * what_if.value : what_if.value;
}

void change(RecordedMessage& message, const WhatIf& what_if) {
  if (what_if.quantity == Quantity::kLatency) {
    message.latency_s = changed_latency(message.latency_s, what_if);
  } else if (what_if.is_factor) {
    message.wire_s /= what_if.value;
  } else {
    message.wire_s = static_cast<double>(message.bytes) / what_if.value;
  }
}

void change(RecordedReduction& reduction, const WhatIf& what_if) {
  const double carried_s = reduction.own_s - reduction.latency_s;
  if (what_if.quantity == Quantity::kBandwidth) {
    reduction.own_s = reduction.latency_s +
                      (what_if.is_factor ? carried_s / what_if.value
                                         : static_cast<double>(reduction.bytes) / what_if.value);
    return;
  }
  // Absolute: of one message of the ring, which has 2(r-1) in a row.
  const auto members = static_cast<double>(reduction.ranks.size());
  reduction.latency_s =
      what_if.is_factor ? reduction.latency_s * what_if.value : 2 * (members - 1) * what_if.value;
  reduction.own_s = carried_s + reduction.latency_s;
}

// Computing and updates; sends, receives and gaps are not the device's.
void change(RecordedAction& action, const WhatIf& what_if) {
  if (!is_compute(action.action.kind) && action.action.kind != ActionKind::kStep) {
    return;
  }
  action.own_s /= what_if.value;
  for (Ask& ask : action.asks) {
    ask.after_s /= what_if.value;
  }
}

}  // namespace

const std::vector<WhatIfKey>& what_if_keys() {
  static const std::vector<WhatIfKey> keys = {
      {"link.bandwidth", "of every message and reduction: a factor, or bytes per second"},
      {"link.latency", "of every message and reduction: a factor, or seconds"},
      {"link0-1.bandwidth", "of messages between two ranks, both ways"},
      {"link0-1.latency", "of messages between two ranks, both ways"},
      {"message.bandwidth", "of messages alone"},
      {"message.latency", "of messages alone"},
      {"reduce.bandwidth", "of reductions alone"},
      {"reduce.latency", "of reductions alone"},
      {"device.speed", "of computing and updates on every rank: a factor"},
      {"rank0.speed", "of one rank"},
      {"stage0.speed", "of one stage, on all its ranks"},
  };
  return keys;
}

WhatIf parse_what_if(const std::string& text) {
  WhatIf what_if;
  what_if.text = text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw wrong(text, "expected KEY=VALUE, such as link.bandwidth=x2");
  }
  const std::string key = text.substr(0, equals);
  const std::size_t dot = key.find('.');
  const std::string quantity = dot == std::string::npos ? "" : key.substr(dot + 1);
  const bool known = dot != std::string::npos && find_subject(key.substr(0, dot), what_if);
  const bool links = known && is_of_links(what_if.subject);
  if (links && quantity == "bandwidth") {
    what_if.quantity = Quantity::kBandwidth;
  } else if (links && quantity == "latency") {
    what_if.quantity = Quantity::kLatency;
  } else if (known && !links && quantity == "speed") {
    what_if.quantity = Quantity::kSpeed;
  } else {
    const std::vector<std::string> keys = known_keys();
    throw wrong(text, fmt::format("unknown key {}{}; there are {}", in_quotes(key),
                                  did_you_mean(key, keys), join(keys, ", ")));
  }
  read_value(text.substr(equals + 1), what_if);
  return what_if;
}

Recording changed(Recording recording, const WhatIf& what_if) {
  bool any = false;
  const auto apply = [&](auto& each) {
    change(each, what_if);
    any = true;
  };
  const Subject subject = what_if.subject;
  for (RecordedMessage& message : recording.messages) {
    const bool of_pair =
        subject == Subject::kPair &&
        std::minmax(message.from, message.to) == std::minmax(what_if.first, what_if.second);
    if (subject == Subject::kAllLinks || subject == Subject::kMessages || of_pair) {
      apply(message);
    }
  }
  for (RecordedReduction& reduction : recording.reductions) {
    if (subject == Subject::kAllLinks || subject == Subject::kReductions) {
      apply(reduction);
    }
  }
  for (std::size_t r = 0; r < recording.actions.size(); ++r) {
    for (RecordedAction& action : recording.actions[r]) {
      if (subject == Subject::kDevices ||
          (subject == Subject::kRank && recording.ranks[r] == what_if.first) ||
          (subject == Subject::kStage && action.action.stage == what_if.first)) {
        apply(action);
      }
    }
  }
  if (!any) {
    throw wrong(what_if.text, fmt::format("this run has nothing of the kind; its ranks are {}",
                                          fmt::join(recording.ranks, ", ")));
  }
  return recording;
}

}  // namespace millrace
