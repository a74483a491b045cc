#include "millrace/collective/cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/collective/internal/network.h"

namespace millrace {
namespace {

// Of times that differ by rounding only, the entry that comes first wins.
constexpr double kEqual = 1 - 1e-9;

// All ways to write `count` as a product of two or three sizes above 1, in any order.
std::vector<std::vector<int>> grids_of(int count) {
  std::vector<std::vector<int>> grids;
  for (int a = 2; a <= count / 2; ++a) {
    if (count % a != 0) {
      continue;
    }
    grids.push_back({a, count / a});
    for (int b = 2; b <= count / a / 2; ++b) {
      if (count / a % b == 0) {
        grids.push_back({a, b, count / a / b});
      }
    }
  }
  return grids;
}

// The configs in which `entry` is worth a try: not those that are another entry's program.
std::vector<CollectiveConfig> tries_of(const CollectiveEntry& entry,
                                       const CollectiveConfig& config) {
  std::vector<CollectiveConfig> tries;
  if (entry.name == "grid") {
    for (const std::vector<int>& grid : grids_of(config.num_members)) {
      tries.push_back(config);
      tries.back().grid = grid;
    }
    return tries;
  }
  const std::set<int> hosts(config.host_of_member.begin(), config.host_of_member.end());
  const bool levels = hosts.size() > 1 && static_cast<int>(hosts.size()) < config.num_members;
  if (entry.name != "hierarchical" || levels) {
    tries.push_back(config);
  }
  return tries;
}

std::string to_text(const TimedCollective& timed) {
  return timed.grid.empty() ? timed.name
                            : fmt::format("{} {}", timed.name, fmt::join(timed.grid, "x"));
}

}  // namespace

WireBytes plain_bytes(double element_bytes) {
  return [element_bytes](int64_t count) { return element_bytes * static_cast<double>(count); };
}

CollectiveTiming time_program(const CollectiveProgram& program, const std::vector<int>& ranks,
                              const Cluster& cluster, const WireBytes& wire_bytes) {
  return internal::time_on(internal::Network(ranks, cluster), program, wire_bytes);
}

CollectiveConfig collective_config(const std::vector<int>& ranks, int64_t elements,
                                   const Cluster& cluster) {
  CollectiveConfig config;
  config.num_members = static_cast<int>(ranks.size());
  config.elements = elements;
  if (cluster.levels.size() > 1) {
    for (const int rank : ranks) {
      config.host_of_member.push_back(rank / cluster.levels[0].size);
    }
  }
  return config;
}

CollectiveChoice choose_collective(const std::vector<int>& ranks, int64_t elements,
                                   const Cluster& cluster, const WireBytes& wire_bytes) {
  const internal::Network network(ranks, cluster);
  const CollectiveConfig config = collective_config(ranks, elements, cluster);
  CollectiveChoice choice;
  for (const CollectiveEntry& entry : collectives()) {
    if (!refusal(entry, config).empty()) {
      continue;
    }
    for (const CollectiveConfig& one : tries_of(entry, config)) {
      const double seconds =
          internal::time_on(network, entry.builtin->make(one), wire_bytes).seconds;
      choice.all.push_back({entry.name, one.grid, seconds});
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < choice.all.size(); ++i) {
    best = choice.all[i].seconds < choice.all[best].seconds * kEqual ? i : best;
  }
  choice.best = choice.all.at(best);
  std::rotate(choice.all.begin(), choice.all.begin() + static_cast<int64_t>(best),
              choice.all.begin() + static_cast<int64_t>(best) + 1);
  std::stable_sort(choice.all.begin() + 1, choice.all.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  choice.reason = fmt::format("{}: {} for {} over {} ranks; next is {} with {}",
                              to_text(choice.best), format_seconds(choice.best.seconds),
                              format_bytes(elements > 0 ? wire_bytes(elements) : 0), ranks.size(),
                              to_text(choice.all.at(1)), format_seconds(choice.all[1].seconds));
  return choice;
}

}  // namespace millrace
