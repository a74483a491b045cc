#include "millrace/schedule/internal/replay.h"

#include <fmt/format.h>

#include <deque>

namespace millrace::internal {
namespace {

struct Replay {
  std::vector<std::size_t> next;  // of each rank: actions before it have run
  std::vector<Place> waits_for;   // of each rank that did not reach its end
};

Replay replay(const ActionLists& lists, const Requirements& requirements) {
  Replay state{std::vector<std::size_t>(lists.size(), 0), std::vector<Place>(lists.size())};
  std::vector<std::vector<std::size_t>> sleepers(lists.size());
  std::deque<std::size_t> ready;
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    ready.push_back(rank);
  }
  std::vector<Place> required;
  while (!ready.empty()) {
    const std::size_t rank = ready.front();
    ready.pop_front();
    state.waits_for[rank] = Place();
    const std::size_t began_at = state.next[rank];
    while (state.next[rank] < lists[rank].size() && !state.waits_for[rank].known()) {
      required.clear();
      requirements({static_cast<int32_t>(rank), static_cast<uint32_t>(state.next[rank])}, required);
      for (const Place place : required) {
        if (place.index >= state.next[static_cast<std::size_t>(place.rank)]) {
          state.waits_for[rank] = place;
          break;
        }
      }
      state.next[rank] += state.waits_for[rank].known() ? 0 : 1;
    }
    // Only progress can end a wait: waking without it would go round for ever in a deadlock.
    if (state.next[rank] > began_at) {
      ready.insert(ready.end(), sleepers[rank].begin(), sleepers[rank].end());
      sleepers[rank].clear();
    }
    if (state.waits_for[rank].known()) {
      sleepers[static_cast<std::size_t>(state.waits_for[rank].rank)].push_back(rank);
    }
  }
  return state;
}

std::string wait_text(const Check& check, const Replay& state, std::size_t rank) {
  const Place wanted = state.waits_for[rank];
  const auto other = static_cast<std::size_t>(wanted.rank);
  return fmt::format("rank {} at {} waits for {}, that rank {} runs after {}", rank,
                     to_string(check.lists[rank][state.next[rank]]), in_words(check.at(wanted)),
                     wanted.rank, to_string(check.lists[other][state.next[other]]));
}

}  // namespace

void check_deadlock(Check& check, const Requirements& requirements) {
  const Replay state = replay(check.lists, requirements);
  const auto follow = [&state](std::size_t rank) {
    return static_cast<std::size_t>(state.waits_for[rank].rank);
  };
  // Every waiting rank has one wait, so that following them ends in a circle.
  std::vector<std::size_t> seen_from(check.lists.size(), check.lists.size());
  for (std::size_t start = 0; start < check.lists.size(); ++start) {
    std::size_t rank = start;
    while (state.waits_for[rank].known() && seen_from[rank] == check.lists.size()) {
      seen_from[rank] = start;
      rank = follow(rank);
    }
    if (!state.waits_for[rank].known() || seen_from[rank] != start || follow(rank) == rank) {
      continue;
    }
    std::string text = "deadlock: " + wait_text(check, state, rank);
    for (std::size_t other = follow(rank); other != rank; other = follow(other)) {
      text += "; " + wait_text(check, state, other);
    }
    check.findings.push_back({std::move(text), static_cast<int>(rank), state.next[rank]});
  }
}

}  // namespace millrace::internal
