#include "millrace/replay/regroup.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace millrace {
namespace {

// Where a replica's update is in the recording.
struct Member {
  std::size_t rank = 0;    // place
  std::size_t reduce = 0;  // actions
  std::size_t backward = 0;
};

bool makes_gradients(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
}

// All replicas of each update whose reductions and last backward are here.
std::vector<std::vector<Member>> updates_of(const Recording& recording, int stage) {
  std::map<int, std::vector<Member>> updates;  // by their first reduction
  for (std::size_t r = 0; r < recording.actions.size(); ++r) {
    bool seen = false;  // a backward since the last REDUCE
    std::size_t backward = 0;
    const std::vector<RecordedAction>& actions = recording.actions[r];
    for (std::size_t a = 0; a < actions.size(); ++a) {
      const Action& action = actions[a].action;
      if (action.stage != stage) {
        continue;
      }
      if (makes_gradients(action)) {
        backward = a;
        seen = true;
      } else if (action.kind == ActionKind::kReduce && seen && !actions[a].awaits.empty()) {
        updates[actions[a].awaits.front()].push_back({r, a, backward});
        seen = false;
      }
    }
  }
  std::vector<std::vector<Member>> whole;
  for (const auto& [reduction, members] : updates) {
    if (members.size() == recording.reductions[static_cast<std::size_t>(reduction)].ranks.size()) {
      whole.push_back(members);
    }
  }
  return whole;
}

}  // namespace

ReductionLine fit_reductions(const Recording& recording, int stage) {
  std::map<int64_t, std::vector<double>> seconds;  // by bytes moved
  double members = 2;
  double latency_s = 0;
  for (const RecordedReduction& reduction : recording.reductions) {
    if (reduction.stage == stage) {
      seconds[reduction.bytes].push_back(reduction.own_s);
      members = static_cast<double>(reduction.ranks.size());
      latency_s = reduction.latency_s;
    }
  }
  ReductionLine line;
  line.num_sizes = static_cast<int>(seconds.size());
  // Least squares of (a + b x) / t - 1.
  double ww = 0;
  double wx = 0;
  double xx = 0;
  double w = 0;
  double x = 0;
  for (const auto& [moved, values] : seconds) {
    const double t = median(values);
    const double bytes = static_cast<double>(moved) * members / (2 * (members - 1));
    if (t <= 0) {
      continue;
    }
    ww += 1 / (t * t);
    wx += bytes / (t * t);
    xx += bytes * bytes / (t * t);
    w += 1 / t;
    x += bytes / t;
  }
  if (xx == 0) {
    line.fixed_s = ww > 0 ? w / ww : 0;
    return line;
  }
  const double determinant = ww * xx - wx * wx;
  if (line.num_sizes < 2 || determinant <= 1e-9 * ww * xx) {
    line.num_sizes = std::min(line.num_sizes, 1);
    line.fixed_s = latency_s;
    line.byte_s = std::max(0.0, (x - latency_s * wx) / xx);
    return line;
  }
  line.fixed_s = (w * xx - x * wx) / determinant;
  line.byte_s = (x * ww - w * wx) / determinant;
  if (line.fixed_s < 0) {
    line.fixed_s = 0;
    line.byte_s = x / xx;
  } else if (line.byte_s < 0) {
    line.byte_s = 0;
    line.fixed_s = w / ww;
  }
  return line;
}

Readiness readiness_of(const Recording& recording, int stage,
                       const std::vector<GradientPiece>& pieces) {
  constexpr double kElementBytes = 4;
  Readiness readiness;
  for (const GradientPiece& piece : pieces) {
    readiness.tensors.push_back({0, kElementBytes * static_cast<double>(piece.range.size())});
  }
  const std::vector<std::vector<Member>> updates = updates_of(recording, stage);
  std::vector<std::vector<double>> asked(pieces.size());
  for (const std::vector<Member>& members : updates) {
    std::vector<double> latest(pieces.size(), -1);
    for (const Member& member : members) {
      const std::vector<RecordedAction>& actions = recording.actions[member.rank];
      double at_s = 0;
      std::size_t number = 0;
      for (std::size_t a = member.backward; a <= member.reduce; ++a) {
        at_s += a == member.backward ? 0 : actions[a].gap_s;
        for (const Ask& ask : actions[a].asks) {
          at_s += ask.after_s;
          const bool own =
              recording.reductions[static_cast<std::size_t>(ask.reduction)].stage == stage;
          if (own && number < pieces.size()) {
            latest[number] = std::max(latest[number], at_s);
          }
          number += own ? 1 : 0;
        }
        at_s += actions[a].own_s;
      }
      if (number != pieces.size()) {
        latest.clear();  // joined, or all at once
        break;
      }
    }
    for (std::size_t k = 0; k < latest.size(); ++k) {
      asked[k].push_back(latest[k]);
    }
  }
  readiness.recorded = !pieces.empty() && !asked.front().empty();
  std::vector<double> backward_s;
  bool halves = false;
  for (const std::vector<Member>& members : updates) {
    double longest_s = 0;
    for (const Member& member : members) {
      const RecordedAction& backward = recording.actions[member.rank][member.backward];
      longest_s = std::max(longest_s, backward.total_s());
      halves = backward.action.kind == ActionKind::kWeightGradient;
    }
    backward_s.push_back(longest_s);
  }
  const double whole_s = median(backward_s);
  double before_s = 0;
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    const double share = halves ? pieces[k].half_done : pieces[k].done;
    before_s = std::max(before_s, readiness.recorded ? median(asked[k]) : share * whole_s);
    readiness.tensors[k].ready_s = before_s;
  }
  return readiness;
}

Recording regroup(Recording recording, int stage, const Readiness& readiness,
                  const std::vector<FusedMessage>& messages, const ReductionLine& line) {
  for (const std::vector<Member>& members : updates_of(recording, stage)) {
    const int first = recording.actions[members[0].rank][members[0].reduce].awaits.front();
    RecordedReduction reduction = recording.reductions[static_cast<std::size_t>(first)];
    const auto ranks = static_cast<double>(reduction.ranks.size());
    std::vector<int> added;
    for (std::size_t g = 0; g < messages.size(); ++g) {
      double bytes = 0;
      for (int k = messages[g].first; k <= messages[g].last; ++k) {
        bytes += readiness.tensors[static_cast<std::size_t>(k)].bytes;
      }
      reduction.beside = true;
      reduction.number = static_cast<int>(g);
      reduction.bytes = std::llround(bytes * 2 * (ranks - 1) / ranks);
      reduction.own_s = line.seconds(bytes);
      reduction.latency_s = std::min(line.fixed_s, reduction.own_s);
      added.push_back(static_cast<int>(recording.reductions.size()));
      recording.reductions.push_back(reduction);
    }
    for (const Member& member : members) {
      std::vector<RecordedAction>& actions = recording.actions[member.rank];
      for (std::size_t a = member.backward; a <= member.reduce; ++a) {
        // Asks of the stage go; their stretches stay in the action.
        double carried_s = 0;
        std::vector<Ask> kept;
        for (const Ask& ask : actions[a].asks) {
          carried_s += ask.after_s;
          if (recording.reductions[static_cast<std::size_t>(ask.reduction)].stage != stage) {
            kept.push_back({carried_s, ask.reduction});
            carried_s = 0;
          }
        }
        actions[a].asks = kept;
        actions[a].own_s += carried_s;
      }
      RecordedAction& backward = actions[member.backward];
      RecordedAction& reduce = actions[member.reduce];
      reduce.awaits = added;
      for (std::size_t g = 0; g < messages.size(); ++g) {
        const double ready_s =
            readiness.tensors[static_cast<std::size_t>(messages[g].last)].ready_s;
        const double asked_s =
            std::accumulate(backward.asks.begin(), backward.asks.end(), 0.0,
                            [](double sum, const Ask& ask) { return sum + ask.after_s; });
        // What is ready with the backward's end, or later, is asked for at REDUCE.
        if (ready_s - asked_s < backward.own_s) {
          const double after_s = std::max(0.0, ready_s - asked_s);
          backward.asks.push_back({after_s, added[g]});
          backward.own_s -= after_s;
        } else {
          reduce.asks.push_back({0, added[g]});
        }
      }
    }
  }
  return recording;
}

}  // namespace millrace
