// What tests of single collectives look at: elements sent, steps, and results on random floats.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/collective/check.h"
#include "tests/collective/run_serially.h"

namespace millrace {

inline std::vector<int64_t> sent_by(const std::string& name, const CollectiveConfig& config) {
  return count_program(make_collective(name, config)).sent_elements;
}

// Expects that the program's steps all send something.
inline int steps_of(const std::string& name, const CollectiveConfig& config) {
  const CollectiveProgram program = make_collective(name, config);
  EXPECT_EQ(count_program(program).num_steps, program.num_steps);
  return program.num_steps;
}

// Sizes of the P chunks of N elements, as the papers' formulas use them.
inline std::vector<int64_t> chunk_sizes(int num_members, int64_t elements) {
  std::vector<int64_t> sizes(num_members, elements / num_members);
  std::for_each(sizes.begin(), sizes.begin() + elements % num_members, [](int64_t& c) { ++c; });
  return sizes;
}

// Random numbers of very different sizes, so that the order of a sum shows in its last bits.
inline std::vector<std::vector<float>> random_floats(int num_members, int64_t elements) {
  std::vector<std::vector<float>> data(num_members);
  for (int m = 0; m < num_members; ++m) {
    const RandomKey key = RandomKey(17).with(m);
    for (int64_t i = 0; i < elements; ++i) {
      data[m].push_back(static_cast<float>(key.normal(i) * (i % 3 == 0 ? 1000 : 1)));
    }
  }
  return data;
}

// The sum of `data` in pieces of the given sizes, each by a program of its own.
inline std::vector<float> sum_in_pieces(const std::string& name, CollectiveConfig config,
                                        const std::vector<std::vector<float>>& data,
                                        const std::vector<int64_t>& pieces) {
  std::vector<float> sum;
  for (const int64_t piece : pieces) {
    config.elements = piece;
    std::vector<std::vector<float>> part;
    for (const std::vector<float>& member : data) {
      const auto begin = member.begin() + static_cast<int64_t>(sum.size());
      part.emplace_back(begin, begin + piece);
    }
    run_serially(make_collective(name, config), part);
    sum.insert(sum.end(), part[0].begin(), part[0].end());
  }
  return sum;
}

// Whether a message of 100 elements and five that make it up give equal bits.
inline bool fused_equals_unfused(const std::string& name, const CollectiveConfig& config) {
  const auto data = random_floats(config.num_members, 100);
  return sum_in_pieces(name, config, data, {100}) ==
         sum_in_pieces(name, config, data, {7, 41, 1, 32, 19});
}

// The sum in member order, ((x0 + x1) + x2) + ...
inline std::vector<float> sum_in_member_order(const std::vector<std::vector<float>>& data) {
  std::vector<float> sum = data[0];
  for (std::size_t m = 1; m < data.size(); ++m) {
    std::transform(sum.begin(), sum.end(), data[m].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

}  // namespace millrace
