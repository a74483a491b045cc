// Counter-based random draws: the same key and counter give the same number on every layout, thread
// and machine (normal() too: it uses only operations that IEEE 754 rounds exactly).
//
// Philox4x32-10 after Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. No state
// is shared, so draws need no lock and replay exactly.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace {

// A key is made by mixing in what a draw depends on: RandomKey(seed).with("init").with(layer_name).
class RandomKey {
 public:
  explicit RandomKey(uint64_t seed);
  RandomKey with(uint64_t part) const;
  RandomKey with(std::string_view part) const;

  // Draw number `counter` under this key.
  std::array<uint32_t, 4> block(uint64_t counter) const;
  uint64_t bits(uint64_t counter) const;   // 64 random bits
  double uniform(uint64_t counter) const;  // in [0, 1), 53 bits
  double normal(uint64_t counter) const;   // mean 0, deviation 1
  // In [0, bound), bias below 2^-64 * bound; bound >= 1.
  uint64_t below(uint64_t counter, uint64_t bound) const;

  uint64_t value() const { return key_; }

 private:
  uint64_t key_;
};

// A permutation of 0..size-1 (Fisher-Yates over the key's draws).
std::vector<int64_t> permutation(const RandomKey& key, int64_t size);

namespace internal {
// The bare generator: ten rounds over a 128-bit counter under a 64-bit key, words least first.
std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
}  // namespace internal

}  // namespace millrace
