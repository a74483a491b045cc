#include "millrace/replay/recording.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "millrace/replay/internal/links.h"

namespace millrace {
namespace {

// Waits shorter than this are a mailbox's own time: the message was there.
constexpr double kWaitS = 2e-6;

const TraceEvent& event_at(const Trace& trace, const EventPlace& place, bool beside = false) {
  const RankTrace& rank = trace.ranks[static_cast<std::size_t>(place.rank)];
  return (beside ? rank.beside : rank.events)[static_cast<std::size_t>(place.event)];
}

std::vector<RecordedAction> actions_of(const RankTrace& rank) {
  std::vector<RecordedAction> actions;
  std::map<int, int64_t> update;                                  // by stage
  std::map<std::tuple<ActionKind, int, int, int>, int> ordinals;  // within the stage's update
  double before_s = rank.events.empty() ? 0 : rank.events.front().start_s;
  for (const TraceEvent& event : rank.events) {
    RecordedAction each;
    each.action = event.action;
    each.start_s = event.start_s;
    each.end_s = event.end_s;
    each.gap_s = std::max(0.0, event.start_s - before_s);
    // Less what reductions take, below. What computing waited was for its samples; an update's
    // waits are nowhere explained.
    each.own_s = event.end_s - event.start_s;
    if (is_receive(event.action.kind)) {
      each.own_s = std::max(0.0, each.own_s - event.wait_s);
    }
    const int stage = event.action.stage;
    each.update = update[stage];
    each.ordinal =
        ordinals[{event.action.kind, stage, event.action.peer, event.action.peer_stage}]++;
    if (event.action.kind == ActionKind::kStep) {
      ++update[stage];
      std::erase_if(ordinals,
                    [stage](const auto& item) { return std::get<1>(item.first) == stage; });
    }
    before_s = event.end_s;
    actions.push_back(std::move(each));
  }
  return actions;
}

void add_messages(const Trace& trace, const Matches& matches, const Cluster* cluster,
                  Recording& recording) {
  std::vector<internal::Flight> flights;
  std::map<std::tuple<int, int, ActionKind, int, int, int64_t>, int> groups;
  for (const MatchedMessage& match : matches.messages) {
    const RankTrace& from = trace.ranks[static_cast<std::size_t>(match.send.rank)];
    const RankTrace& to = trace.ranks[static_cast<std::size_t>(match.receive.rank)];
    const TraceEvent& send = event_at(trace, match.send);
    const TraceEvent& receive = event_at(trace, match.receive);
    RecordedMessage message{.from = from.rank, .to = to.rank, .bytes = send.bytes};
    message.group = groups
                        .try_emplace({from.rank, to.rank, send.action.kind, send.action.stage,
                                      send.action.peer_stage, send.bytes},
                                     static_cast<int>(groups.size()))
                        .first->second;
    message.observed = receive.wait_s > kWaitS;
    const double waited_s = std::min(receive.wait_s, receive.end_s - receive.start_s);
    internal::Flight flight{.message = static_cast<int>(recording.messages.size())};
    // Between processes all ranks share the wire.
    flight.link = from.process == to.process ? std::tuple(true, from.rank, to.rank)
                                             : std::tuple(false, from.process, to.process);
    flight.sent_s = send.start_s;
    flight.there_s = message.observed ? receive.end_s - (receive.end_s - receive.start_s - waited_s)
                                      : receive.start_s;
    flights.push_back(flight);
    for (const EventPlace& place : {match.send, match.receive}) {
      recording.actions[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.event)]
          .message = flight.message;
    }
    recording.messages.push_back(message);
  }
  internal::time_flights(flights, cluster, recording.messages);
}

// When a reduction's first member left it.
double first_end_s(const Trace& trace, const MatchedReduction& match) {
  double end_s = std::numeric_limits<double>::infinity();
  for (const EventPlace& member : match.members) {
    end_s = std::min(end_s, event_at(trace, member, match.beside).end_s);
  }
  return end_s;
}

double last_start_s(const Trace& trace, const MatchedReduction& match) {
  double start_s = -std::numeric_limits<double>::infinity();
  for (const EventPlace& member : match.members) {
    start_s = std::max(start_s, event_at(trace, member, match.beside).start_s);
  }
  return start_s;
}

// Puts an ask at the action during which it was made.
void add_ask(std::vector<RecordedAction>& actions, std::size_t last, double asked_s,
             int reduction) {
  std::size_t at = last;
  while (at > 0 && actions[at].start_s > asked_s) {
    --at;
  }
  RecordedAction& action = actions[at];
  double before_s = action.start_s;
  for (const Ask& ask : action.asks) {
    before_s += ask.after_s;
  }
  const double after_s = std::clamp(asked_s - before_s, 0.0, action.own_s);
  action.asks.push_back({after_s, reduction});
  action.own_s -= after_s;
}

void add_reductions(const Trace& trace, const Matches& matches, const Cluster* cluster,
                    Recording& recording) {
  std::map<std::vector<int>, double> channel_free_s;  // by ranks, of those beside
  for (const MatchedReduction& match : matches.reductions) {
    const TraceEvent& first = event_at(trace, match.members.front(), match.beside);
    RecordedReduction reduction;
    reduction.stage = first.action.kind == ActionKind::kNorm ? -1 : first.action.stage;
    reduction.bytes = first.bytes;
    reduction.beside = match.beside;
    reduction.number = match.number;
    for (const EventPlace& member : match.members) {
      reduction.ranks.push_back(trace.ranks[static_cast<std::size_t>(member.rank)].rank);
    }
    const auto index = static_cast<int>(recording.reductions.size());
    const double end_s = first_end_s(trace, match);
    double begin_s = last_start_s(trace, match);
    if (match.beside) {
      std::vector<int> channel = reduction.ranks;
      channel.push_back(reduction.stage);
      const auto [free, fresh] = channel_free_s.try_emplace(channel, begin_s);
      begin_s = std::max(begin_s, free->second);
      free->second = end_s;
    }
    reduction.own_s = std::max(0.0, end_s - begin_s);
    reduction.latency_s =
        cluster == nullptr ? 0
                           : std::min(cluster->all_reduce_s(reduction.ranks, 0), reduction.own_s);
    for (std::size_t m = 0; m < match.members.size(); ++m) {
      const EventPlace& waiter = match.beside ? match.awaited_by[m] : match.members[m];
      std::vector<RecordedAction>& actions =
          recording.actions[static_cast<std::size_t>(waiter.rank)];
      RecordedAction& action = actions[static_cast<std::size_t>(waiter.event)];
      action.awaits.push_back(index);
      if (match.beside) {
        add_ask(actions, static_cast<std::size_t>(waiter.event),
                event_at(trace, match.members[m], true).start_s, index);
      }
      // After the wait: what was left when the reduction, or the last of them, was over.
      const double ready_s = std::clamp(end_s, action.start_s, action.end_s);
      double asked_s = action.start_s;
      for (const Ask& ask : action.asks) {
        asked_s += ask.after_s;
      }
      action.own_s = action.end_s - std::max(ready_s, asked_s);
    }
    recording.reductions.push_back(std::move(reduction));
  }
}

}  // namespace

double RecordedAction::total_s() const {
  return std::accumulate(asks.begin(), asks.end(), own_s,
                         [](double sum, const Ask& ask) { return sum + ask.after_s; });
}

double RecordedReduction::vector_bytes() const {
  const auto members = static_cast<double>(ranks.size());
  return members < 2 ? 0 : static_cast<double>(bytes) * members / (2 * (members - 1));
}

Recording take_apart(const Trace& trace, const Matches& matches, const Cluster* cluster) {
  Recording recording;
  recording.num_alone = matches.num_alone;
  for (const RankTrace& rank : trace.ranks) {
    recording.ranks.push_back(rank.rank);
    recording.processes.push_back(rank.process);
    recording.actions.push_back(actions_of(rank));
  }
  add_messages(trace, matches, cluster, recording);
  add_reductions(trace, matches, cluster, recording);
  return recording;
}

}  // namespace millrace
