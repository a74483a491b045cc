#include "millrace/replay/matches.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

namespace millrace {
namespace {

// Of a message: whether it goes forward, ranks and stages at both ends, microbatch.
using MessageKey = std::tuple<bool, int, int, int, int, int64_t>;

MessageKey key_of(int rank, const Action& action) {
  const bool forward =
      action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
  return is_send(action.kind)
             ? MessageKey(forward, rank, action.peer, action.stage, action.peer_stage, action.first)
             : MessageKey(forward, action.peer, rank, action.peer_stage, action.stage,
                          action.first);
}

void match_messages(const Trace& trace, Matches& matches) {
  std::map<MessageKey, std::deque<EventPlace>> sent;
  int num_sends = 0;
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    const std::vector<TraceEvent>& events = trace.ranks[r].events;
    for (std::size_t e = 0; e < events.size(); ++e) {
      if (is_send(events[e].action.kind)) {
        sent[key_of(trace.ranks[r].rank, events[e].action)].push_back(
            {static_cast<int>(r), static_cast<int>(e)});
        ++num_sends;
      }
    }
  }
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    const std::vector<TraceEvent>& events = trace.ranks[r].events;
    for (std::size_t e = 0; e < events.size(); ++e) {
      if (!is_receive(events[e].action.kind)) {
        continue;
      }
      std::deque<EventPlace>& sends = sent[key_of(trace.ranks[r].rank, events[e].action)];
      if (sends.empty()) {
        ++matches.num_alone;
        continue;
      }
      matches.messages.push_back({sends.front(), {static_cast<int>(r), static_cast<int>(e)}});
      sends.pop_front();
    }
  }
  matches.num_alone += num_sends - static_cast<int>(matches.messages.size());
}

// What one rank has of one update: its REDUCE (or NORM), and what went on beside until its end.
struct Part {
  EventPlace meeting;
  std::vector<EventPlace> beside;
};
// Updates of each rank that holds the stage, in order; stage -1: norms.
using Parts = std::map<int, std::vector<std::vector<Part>>>;

Parts parts_of(const Trace& trace, bool reduces) {
  Parts parts;
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    const RankTrace& rank = trace.ranks[r];
    std::map<int, std::vector<Part>> own;
    std::map<int, std::size_t> next;  // place in `beside`, by stage
    for (std::size_t e = 0; e < rank.events.size(); ++e) {
      const TraceEvent& event = rank.events[e];
      const bool norm = event.action.kind == ActionKind::kNorm;
      if (!norm && (event.action.kind != ActionKind::kReduce || !reduces)) {
        continue;
      }
      Part part{{static_cast<int>(r), static_cast<int>(e)}, {}};
      std::size_t& at = next[event.action.stage];
      for (; !norm && at < rank.beside.size() && rank.beside[at].start_s < event.end_s; ++at) {
        if (rank.beside[at].action.stage == event.action.stage) {
          part.beside.push_back({static_cast<int>(r), static_cast<int>(at)});
        }
      }
      own[norm ? -1 : event.action.stage].push_back(std::move(part));
    }
    for (auto& [stage, updates] : own) {
      parts[stage].push_back(std::move(updates));
    }
  }
  return parts;
}

// The same update of all members.
void add_reductions(const std::vector<const Part*>& members, Matches& matches) {
  MatchedReduction meeting;
  bool any_beside = false;
  bool alike = true;
  for (const Part* part : members) {
    meeting.members.push_back(part->meeting);
    any_beside = any_beside || !part->beside.empty();
    alike = alike && part->beside.size() == members.front()->beside.size();
  }
  if (!any_beside) {
    matches.reductions.push_back(std::move(meeting));
    return;
  }
  // A trace that was cut may lack some of one member's; then none of this update is matched.
  const std::size_t count = alike ? members.front()->beside.size() : 0;
  for (std::size_t k = 0; k < count; ++k) {
    MatchedReduction reduction{.beside = true, .number = static_cast<int>(k)};
    reduction.awaited_by = meeting.members;
    for (const Part* part : members) {
      reduction.members.push_back(part->beside[k]);
    }
    matches.reductions.push_back(std::move(reduction));
  }
}

}  // namespace

Matches match_events(const Trace& trace, bool reduces) {
  Matches matches;
  match_messages(trace, matches);
  for (const auto& [stage, ranks] : parts_of(trace, reduces)) {
    std::size_t updates = ranks.front().size();
    for (const std::vector<Part>& own : ranks) {
      updates = std::min(updates, own.size());
    }
    for (std::size_t u = 0; u < updates && ranks.size() > 1; ++u) {
      std::vector<const Part*> members;
      for (const std::vector<Part>& own : ranks) {
        members.push_back(&own[u]);
      }
      add_reductions(members, matches);
    }
  }
  return matches;
}

}  // namespace millrace
