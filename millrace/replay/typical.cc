// Medians over what is alike in a recording.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/replay/recording.h"

namespace millrace {
namespace {

// What actions of one rank must share to stand for each other.
using ActionKey = std::tuple<ActionKind, int, int, int, int64_t, int, std::size_t>;

ActionKey key_of(const RecordedAction& each) {
  const Action& action = each.action;
  return {action.kind,  action.stage,    action.peer, action.peer_stage, action.num_microbatches(),
          each.ordinal, each.asks.size()};
}

struct ActionValues {
  std::vector<double> gaps;
  std::vector<double> own;
  std::vector<std::vector<double>> asks;
};

void typical_actions(std::vector<RecordedAction>& actions) {
  std::map<ActionKey, ActionValues> values;
  for (const RecordedAction& each : actions) {
    ActionValues& like = values[key_of(each)];
    like.gaps.push_back(each.gap_s);
    like.own.push_back(each.own_s);
    like.asks.resize(each.asks.size());
    for (std::size_t k = 0; k < each.asks.size(); ++k) {
      like.asks[k].push_back(each.asks[k].after_s);
    }
  }
  struct Medians {
    double gap_s = 0;
    double own_s = 0;
    std::vector<double> asks;
  };
  std::map<ActionKey, Medians> medians;
  for (auto& [key, like] : values) {
    Medians& middle = medians[key];
    middle.gap_s = median(std::move(like.gaps));
    middle.own_s = median(std::move(like.own));
    for (std::vector<double>& ask : like.asks) {
      middle.asks.push_back(median(std::move(ask)));
    }
  }
  for (RecordedAction& each : actions) {
    const Medians& middle = medians.at(key_of(each));
    each.gap_s = middle.gap_s;
    each.own_s = middle.own_s;
    for (std::size_t k = 0; k < each.asks.size(); ++k) {
      each.asks[k].after_s = middle.asks[k];
    }
  }
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Recording typical(Recording recording) {
  for (std::vector<RecordedAction>& actions : recording.actions) {
    typical_actions(actions);
  }
  std::map<std::pair<int, bool>, std::vector<double>> wires;
  for (const RecordedMessage& message : recording.messages) {
    wires[{message.group, message.observed}].push_back(message.wire_s);
  }
  std::map<int, double> wire_s;  // of those observed, where there are any
  for (const auto& [key, values] : wires) {
    wire_s[key.first] = median(values);  // `true` comes after `false`
  }
  for (RecordedMessage& message : recording.messages) {
    message.wire_s = wire_s.at(message.group);
  }
  using ReductionKey = std::tuple<int, std::vector<int>, bool, int, int64_t>;
  const auto key = [](const RecordedReduction& each) {
    return ReductionKey(each.stage, each.ranks, each.beside, each.number, each.bytes);
  };
  std::map<ReductionKey, std::vector<double>> own;
  for (const RecordedReduction& reduction : recording.reductions) {
    own[key(reduction)].push_back(reduction.own_s);
  }
  std::map<ReductionKey, double> own_s;
  for (const auto& [each, values] : own) {
    own_s[each] = median(values);
  }
  for (RecordedReduction& reduction : recording.reductions) {
    reduction.own_s = own_s.at(key(reduction));
    reduction.latency_s = std::min(reduction.latency_s, reduction.own_s);
  }
  return recording;
}

}  // namespace millrace
