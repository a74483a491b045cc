// The configs that property tests over all collectives run: members, sizes, grids and hosts.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "millrace/collective/program.h"

namespace millrace {

inline const std::vector<int>& tested_members() {
  static const std::vector<int> counts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
  return counts;
}

inline const std::vector<int64_t>& tested_sizes() {
  static const std::vector<int64_t> sizes = {0, 1, 2, 3, 7, 10, 64, 1000, 1001};
  return sizes;
}

inline std::string to_text(const CollectiveConfig& config) {
  return fmt::format("P={} N={} grid {} hosts {}", config.num_members, config.elements,
                     fmt::join(config.grid, "x"), fmt::join(config.host_of_member, ","));
}

// One size: plain, in hosts of two, in two hosts of which the first is the smaller, dealt in turn
// to three hosts, and, where P has a proper divisor, as a grid of three dimensions.
inline std::vector<CollectiveConfig> configs_of(int num_members, int64_t elements) {
  CollectiveConfig plain;
  plain.num_members = num_members;
  plain.elements = elements;
  std::vector<CollectiveConfig> configs(4, plain);
  for (int m = 0; m < num_members; ++m) {
    configs[1].host_of_member.push_back(m / 2);
    configs[2].host_of_member.push_back(m < (num_members - 1) / 2 ? 9 : 4);
    configs[3].host_of_member.push_back(m % 3);
  }
  for (int divisor = 2; divisor <= num_members; ++divisor) {
    if (num_members % divisor == 0) {
      configs.push_back(plain);
      configs.back().grid = {divisor, 1, num_members / divisor};
    }
  }
  if (num_members == 12) {
    configs.push_back(plain);
    configs.back().grid = {2, 3, 2};
  }
  return configs;
}

// Calls `use(entry, config, program)` for every entry that is a program, over all of the above.
template <typename Use>
void for_all_programs(const Use& use) {
  for (const CollectiveEntry& entry : collectives()) {
    for (const int num_members : tested_members()) {
      for (const int64_t elements : tested_sizes()) {
        for (const CollectiveConfig& config : configs_of(num_members, elements)) {
          if (refusal(entry, config).empty()) {
            use(entry, config, make_collective(entry.name, config));
          }
        }
      }
    }
  }
}

}  // namespace millrace
