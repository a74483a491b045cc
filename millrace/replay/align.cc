#include "millrace/replay/align.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Observed bounds between two processes, `from` < `to`, by the size of what was carried.
struct Observed {
  double low_s = -kInfinity;
  double high_s = kInfinity;
};
struct PairBounds {
  Observed all;
  std::map<int64_t, Observed> by_bytes;
  int num = 0;
};
using Bounds = std::map<std::pair<int, int>, PairBounds>;

// Something left process `from` at `sent_s` of its clock and was at `to` by `there_s` of its own.
void observe(Bounds& bounds, int from, int to, int64_t bytes, double sent_s, double there_s) {
  if (from == to) {
    return;
  }
  PairBounds& pair = bounds[std::minmax(from, to)];
  ++pair.num;
  for (Observed* each : {&pair.all, &pair.by_bytes[bytes]}) {
    if (from < to) {
      each->high_s = std::min(each->high_s, there_s - sent_s);
    } else {
      each->low_s = std::max(each->low_s, sent_s - there_s);
    }
  }
}

Bounds observe_all(const Trace& trace, const Matches& matches) {
  Bounds bounds;
  const auto process = [&](const EventPlace& place) {
    return trace.ranks[static_cast<std::size_t>(place.rank)].process;
  };
  const auto event = [&](const EventPlace& place, bool beside) -> const TraceEvent& {
    const RankTrace& rank = trace.ranks[static_cast<std::size_t>(place.rank)];
    return (beside ? rank.beside : rank.events)[static_cast<std::size_t>(place.event)];
  };
  for (const MatchedMessage& message : matches.messages) {
    const TraceEvent& send = event(message.send, false);
    observe(bounds, process(message.send), process(message.receive), send.bytes, send.start_s,
            event(message.receive, false).end_s);
  }
  for (const MatchedReduction& reduction : matches.reductions) {
    for (const EventPlace& from : reduction.members) {
      for (const EventPlace& to : reduction.members) {
        const TraceEvent& entered = event(from, reduction.beside);
        observe(bounds, process(from), process(to), entered.bytes, entered.start_s,
                event(to, reduction.beside).end_s);
      }
    }
  }
  return bounds;
}

ClockPair pair_of(int from, int to, const PairBounds& bounds) {
  ClockPair pair{.from = from, .to = to};
  pair.low_s = bounds.all.low_s;
  pair.high_s = bounds.all.high_s;
  pair.num_observed = bounds.num;
  for (const auto& [bytes, observed] : bounds.by_bytes) {
    const double width = observed.high_s - observed.low_s;
    if (width < pair.equal_high_s - pair.equal_low_s) {
      pair.equal_low_s = observed.low_s;
      pair.equal_high_s = observed.high_s;
    }
  }
  return pair;
}

// Widths of nothing would weigh infinitely.
constexpr double kLeastWidthS = 1e-9;

// Weights and wanted differences of the least squares: a pair of both ways its middle; a pair of
// one way its bound, at next to no weight, so that it decides only what nothing else does.
struct Term {
  int from = 0;
  int to = 0;
  double wanted_s = 0;
  double weight = 0;
};

std::vector<Term> terms_of(const std::vector<ClockPair>& pairs) {
  std::vector<Term> terms;
  double least = kInfinity;
  for (const ClockPair& pair : pairs) {
    if (pair.both_ways()) {
      const double width = std::max(std::abs(pair.high_s - pair.low_s), kLeastWidthS);
      terms.push_back({pair.from, pair.to, pair.middle_s(), 1 / (width * width)});
      least = std::min(least, terms.back().weight);
    }
  }
  const double faint = 1e-7 * (std::isinf(least) ? 1 : least);
  for (const ClockPair& pair : pairs) {
    if (!pair.both_ways()) {
      terms.push_back(
          {pair.from, pair.to, std::isinf(pair.high_s) ? pair.low_s : pair.high_s, faint});
    }
  }
  return terms;
}

using Matrix = std::vector<std::vector<double>>;

// Gauss-Jordan with pivoting on a symmetric positive definite matrix.
Matrix inverse(Matrix a) {
  const std::size_t n = a.size();
  Matrix result(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    result[i][i] = 1;
  }
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c; r < n; ++r) {
      pivot = std::abs(a[r][c]) > std::abs(a[pivot][c]) ? r : pivot;
    }
    std::swap(a[c], a[pivot]);
    std::swap(result[c], result[pivot]);
    const double scale = 1 / a[c][c];
    for (std::size_t k = 0; k < n; ++k) {
      a[c][k] *= scale;
      result[c][k] *= scale;
    }
    for (std::size_t r = 0; r < n; ++r) {
      const double factor = a[r][c];
      for (std::size_t k = 0; r != c && k < n; ++k) {
        a[r][k] -= factor * a[c][k];
        result[r][k] -= factor * result[c][k];
      }
    }
  }
  return result;
}

// One side of a pair's bounds: sign * (x[to] - x[from]) <= limit.
struct Constraint {
  int from = 0;
  int to = 0;
  double sign = 1;
  double limit = 0;
  double multiplier = 0;
};

// Hildreth's method: the multipliers of a quadratic program, one after another, until nothing
// moves.
void enforce(const std::vector<ClockPair>& pairs, const Matrix& inverted, std::vector<double>& x) {
  std::vector<Constraint> constraints;
  for (const ClockPair& pair : pairs) {
    if (pair.low_s > pair.high_s) {
      continue;  // nothing satisfies both
    }
    if (!std::isinf(pair.high_s)) {
      constraints.push_back({pair.from, pair.to, 1, pair.high_s});
    }
    if (!std::isinf(pair.low_s)) {
      constraints.push_back({pair.from, pair.to, -1, -pair.low_s});
    }
  }
  // Entries of clock 0, which is fixed, are 0.
  const auto at = [&](int i, int j) {
    return i == 0 || j == 0
               ? 0.0
               : inverted[static_cast<std::size_t>(i - 1)][static_cast<std::size_t>(j - 1)];
  };
  constexpr int kMostSweeps = 10000;
  constexpr double kEnoughS = 1e-12;
  double moved = kInfinity;
  for (int sweep = 0; sweep < kMostSweeps && moved > kEnoughS; ++sweep) {
    moved = 0;
    for (Constraint& each : constraints) {
      const double curvature =
          at(each.to, each.to) + at(each.from, each.from) - 2 * at(each.from, each.to);
      const double over = each.sign * (x[static_cast<std::size_t>(each.to)] -
                                       x[static_cast<std::size_t>(each.from)]) -
                          each.limit;
      if (curvature <= 0) {
        continue;
      }
      const double multiplier = std::max(0.0, each.multiplier + over / curvature);
      const double change = multiplier - each.multiplier;
      each.multiplier = multiplier;
      for (int i = 1; i < static_cast<int>(x.size()); ++i) {
        const double step = change * each.sign * (at(i, each.to) - at(i, each.from));
        x[static_cast<std::size_t>(i)] -= step;
        moved = std::max(moved, std::abs(step));
      }
    }
  }
}

// Between clock 0 and each, the narrowest bounds that follow from all pairs: shortest paths.
struct Reach {
  std::vector<double> low_s;
  std::vector<double> high_s;
  bool consistent = true;
};

Reach reach_of(std::size_t num, const std::vector<ClockPair>& pairs) {
  std::vector<double> up(num, kInfinity);
  std::vector<double> down(num, kInfinity);  // of -theta
  up[0] = down[0] = 0;
  Reach reach;
  for (std::size_t round = 0; round <= num; ++round) {
    bool changed = false;
    const auto relax = [&](std::vector<double>& x, int from, int to, double limit) {
      const double through = x[static_cast<std::size_t>(from)] + limit;
      if (through < x[static_cast<std::size_t>(to)] - 1e-12) {
        x[static_cast<std::size_t>(to)] = through;
        changed = true;
      }
    };
    for (const ClockPair& pair : pairs) {
      relax(up, pair.from, pair.to, pair.high_s);
      relax(up, pair.to, pair.from, -pair.low_s);
      relax(down, pair.from, pair.to, -pair.low_s);
      relax(down, pair.to, pair.from, pair.high_s);
    }
    if (!changed) {
      break;
    }
    reach.consistent = round < num;
  }
  reach.high_s = up;
  for (const double each : down) {
    reach.low_s.push_back(-each);
  }
  return reach;
}

}  // namespace

bool ClockPair::both_ways() const { return !std::isinf(low_s) && !std::isinf(high_s); }

double ClockPair::middle_s() const {
  const bool equal = !std::isinf(equal_low_s) && !std::isinf(equal_high_s);
  const double middle = equal ? (equal_low_s + equal_high_s) / 2 : (low_s + high_s) / 2;
  return low_s <= high_s ? std::clamp(middle, low_s, high_s) : middle;
}

std::vector<double> solve_offsets(int num, const std::vector<ClockPair>& pairs) {
  MILLRACE_CHECK(num >= 1);
  const auto n = static_cast<std::size_t>(num) - 1;
  Matrix matrix(n, std::vector<double>(n));
  std::vector<double> right(n);
  double most = 0;
  for (const Term& term : terms_of(pairs)) {
    most = std::max(most, term.weight);
    for (const auto& [own, other, sign] :
         {std::tuple(term.to, term.from, 1.0), std::tuple(term.from, term.to, -1.0)}) {
      if (own == 0) {
        continue;
      }
      const auto i = static_cast<std::size_t>(own) - 1;
      matrix[i][i] += term.weight;
      right[i] += sign * term.weight * term.wanted_s;
      if (other != 0) {
        matrix[i][static_cast<std::size_t>(other) - 1] -= term.weight;
      }
    }
  }
  // A clock of which nothing is known stays near 0.
  const double faintest = 1e-13 * (most > 0 ? most : 1);
  for (std::size_t i = 0; i < n; ++i) {
    matrix[i][i] += faintest;
  }
  const Matrix inverted = inverse(matrix);
  std::vector<double> offsets(static_cast<std::size_t>(num));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      offsets[i + 1] += inverted[i][j] * right[j];
    }
  }
  enforce(pairs, inverted, offsets);
  return offsets;
}

Alignment align_clocks(const Trace& trace, const Matches& matches) {
  Alignment alignment;
  std::map<int, std::size_t> place;  // of a process among the clocks
  std::map<int, const RankTrace*> ranks;
  for (const RankTrace& rank : trace.ranks) {
    ranks.emplace(rank.process, &rank);
  }
  for (const auto& [process, rank] : ranks) {
    place.emplace(process, alignment.clocks.size());
    ProcessClock clock{.process = process, .host = rank->host};
    const RankTrace& first = *ranks.begin()->second;
    if (rank->origin_s != 0 && first.origin_s != 0 && rank->host == first.host) {
      clock.by_host_s = first.origin_s - rank->origin_s;
    }
    alignment.clocks.push_back(std::move(clock));
  }
  if (alignment.clocks.size() < 2) {
    return alignment;
  }
  std::vector<ClockPair> numbered;  // by place
  for (const auto& [ends, bounds] : observe_all(trace, matches)) {
    alignment.pairs.push_back(pair_of(ends.first, ends.second, bounds));
    numbered.push_back(alignment.pairs.back());
    numbered.back().from = static_cast<int>(place.at(ends.first));
    numbered.back().to = static_cast<int>(place.at(ends.second));
  }
  const std::vector<double> offsets =
      solve_offsets(static_cast<int>(alignment.clocks.size()), numbered);
  const Reach reach = reach_of(alignment.clocks.size(), numbered);
  alignment.consistent = reach.consistent;
  for (std::size_t i = 1; i < alignment.clocks.size(); ++i) {
    ProcessClock& clock = alignment.clocks[i];
    clock.offset_s = offsets[i];
    clock.half_width_s = std::max(reach.high_s[i] - offsets[i], offsets[i] - reach.low_s[i]);
    const bool below = !std::isinf(reach.low_s[i]);
    const bool above = !std::isinf(reach.high_s[i]);
    if (!below && !above) {
      clock.note = "nothing passed between it and the first: its clock is taken as it is";
      clock.offset_s = std::isnan(clock.by_host_s) ? 0 : clock.by_host_s;
    } else if (!below || !above) {
      clock.note = below ? "messages one way only: the offset is at least this"
                         : "messages one way only: the offset is at most this";
    }
  }
  return alignment;
}

Trace aligned(Trace trace, const Alignment& alignment) {
  std::map<int, double> offsets;
  for (const ProcessClock& clock : alignment.clocks) {
    offsets[clock.process] = clock.offset_s;
  }
  for (RankTrace& rank : trace.ranks) {
    const double offset = offsets[rank.process];
    for (std::vector<TraceEvent>* events : {&rank.events, &rank.beside}) {
      for (TraceEvent& event : *events) {
        event.start_s -= offset;
        event.end_s -= offset;
      }
    }
  }
  return trace;
}

}  // namespace millrace
