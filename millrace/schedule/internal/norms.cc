#include "millrace/schedule/internal/norms.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace millrace::internal {

Norms::Norms(Check& check) : check_(check), norms_(check.lists.size()) {
  for (std::size_t rank = 0; rank < check.lists.size(); ++rank) {
    for (std::size_t i = 0; i < check.lists[rank].size(); ++i) {
      if (check.lists[rank][i].kind == ActionKind::kNorm) {
        norms_[rank].push_back({static_cast<int32_t>(rank), static_cast<uint32_t>(i)});
      }
    }
  }
}

void Norms::check() {
  std::optional<int> first;
  for (std::size_t rank = 0; rank < norms_.size() && !first; ++rank) {
    if (!norms_[rank].empty()) {
      first = static_cast<int>(rank);
    }
  }
  if (!first) {
    return;
  }
  for (std::size_t rank = 0; rank < norms_.size(); ++rank) {
    if (!check_.lists[rank].empty()) {
      check_rank(static_cast<int>(rank));
      compare(*first, static_cast<int>(rank));
    }
  }
}

void Norms::check_rank(int rank) {
  const ActionList& list = check_.lists[static_cast<std::size_t>(rank)];
  std::optional<Place> last;
  bool used = true;
  const auto leave = [&] {
    if (!used) {
      check_.add(*last, "no STEP uses the norm");
    }
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place place{rank, static_cast<uint32_t>(i)};
    const bool of_last =
        last && check_.at(*last).first == list[i].first && check_.at(*last).last == list[i].last;
    if (list[i].kind == ActionKind::kNorm) {
      if (check_bounds(check_, place)) {
        leave();
      }
      last = place;
      used = false;
    } else if (list[i].kind == ActionKind::kReduce && of_last) {
      check_.add(*last, fmt::format("takes the norm before {}, which is action {}",
                                    to_string(list[i]), i));
    } else if (list[i].kind == ActionKind::kStep) {
      if (!of_last) {
        check_.add(place,
                   "expected a NORM of the same microbatches before it, as other updates have");
      }
      used = true;
    }
  }
  leave();
}

void Norms::compare(int first, int rank) {
  const std::vector<Place>& expected = norms_[static_cast<std::size_t>(first)];
  const std::vector<Place>& found = norms_[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
    const Action& other = check_.at(expected[i]);
    if (check_.at(found[i]).first != other.first || check_.at(found[i]).last != other.last) {
      check_.add(found[i], fmt::format("rank {} has {} at this point", first, to_string(other)));
    }
  }
  if (expected.size() != found.size()) {
    const bool more = found.size() > expected.size();
    check_.add(more ? found[expected.size()] : expected[found.size()],
               fmt::format("rank {} has no NORM to meet it", more ? first : rank));
  }
}

void Norms::add_requirements(Place norm, std::vector<Place>& required) const {
  const std::vector<Place>& own = norms_[static_cast<std::size_t>(norm.rank)];
  const auto found = std::find_if(own.begin(), own.end(),
                                  [norm](Place place) { return place.index == norm.index; });
  const auto number = static_cast<std::size_t>(found - own.begin());
  for (const std::vector<Place>& others : norms_) {
    if (number < others.size() && others[number].rank != norm.rank && others[number].index > 0) {
      required.push_back({others[number].rank, others[number].index - 1});
    }
  }
}

}  // namespace millrace::internal
