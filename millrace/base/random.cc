#include "millrace/base/random.h"

#include <cmath>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

__extension__ typedef unsigned __int128 Wide;

// The upper half of the counter says what a block is for, so that a derived key never equals a
// draw.
enum Purpose : uint32_t { kDraw = 0, kNumberPart = 1, kTextPart = 2, kTextEnd = 3 };

constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
constexpr uint64_t whole(uint32_t lower, uint32_t upper) {
  return (static_cast<uint64_t>(upper) << 32) | lower;
}

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter, Purpose purpose) {
  return internal::philox4x32_10({low(counter), high(counter), purpose, 0}, {low(key), high(key)});
}

uint64_t derive(uint64_t key, uint64_t part, Purpose purpose) {
  const auto words = philox(key, part, purpose);
  return whole(words[0], words[1]);
}

// The logarithm and cosine of the C library may differ in the last bit between versions, and
// initial weights must not. These use only + - * / and exact scaling, to within a few units of the
// last place.
double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  // log m = 2 artanh((m-1)/(m+1)), whose argument is below 0.172 here: its square's 11th power is
  // below a double's precision.
  const double z = (mantissa - 1) / (mantissa + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 11; k >= 0; --k) {
    sum = sum * z2 + 1.0 / (2 * k + 1);
  }
  return exponent * 0.69314718055994531 + 2 * z * sum;
}

// cos(2 pi u) for u in [0, 1).
double portable_cos_turns(double u) {
  constexpr double kTwoPi = 6.2831853071795865;
  // Fold into the first half turn, then reflect so that the series sees at most an eighth of a
  // turn.
  double folded = u > 0.5 ? 1 - u : u;
  double sign = 1;
  if (folded > 0.25) {
    folded = 0.5 - folded;
    sign = -1;
  }
  const bool use_sine = folded > 0.125;
  const double x = kTwoPi * (use_sine ? 0.25 - folded : folded);
  const double x2 = x * x;
  double sum = 0;
  for (int k = 9; k >= 0; --k) {
    const double a = 2 * k + (use_sine ? 2 : 1);
    sum = 1 - sum * x2 / (a * (a + 1));
  }
  return sign * (use_sine ? x * sum : sum);
}

}  // namespace

namespace internal {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  // Multipliers and key increments of the paper, table 2 and section 3.3.
  constexpr uint64_t kMultiply0 = 0xD2511F53;
  constexpr uint64_t kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kBump0 = 0x9E3779B9;
  constexpr uint32_t kBump1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiply0 * counter[0];
    const uint64_t product1 = kMultiply1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key[0] += kBump0;
    key[1] += kBump1;
  }
  return counter;
}

}  // namespace internal

RandomKey::RandomKey(uint64_t seed) : key_(seed) {}

RandomKey RandomKey::with(uint64_t part) const {
  return RandomKey(derive(key_, part, kNumberPart));
}

RandomKey RandomKey::with(std::string_view part) const {
  uint64_t key = key_;
  uint64_t word = 0;
  int filled = 0;
  for (const char c : part) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(c)) << (8 * filled);
    if (++filled == 8) {
      key = derive(key, word, kTextPart);
      word = 0;
      filled = 0;
    }
  }
  if (filled > 0) {
    key = derive(key, word, kTextPart);
  }
  // The length keeps "a" and "a\0" apart.
  return RandomKey(derive(key, part.size(), kTextEnd));
}

std::array<uint32_t, 4> RandomKey::block(uint64_t counter) const {
  return philox(key_, counter, kDraw);
}

uint64_t RandomKey::bits(uint64_t counter) const {
  const auto words = block(counter);
  return whole(words[0], words[1]);
}

double RandomKey::uniform(uint64_t counter) const {
  return static_cast<double>(bits(counter) >> 11) * 0x1p-53;
}

double RandomKey::normal(uint64_t counter) const {
  // Box and Muller. The radius draws from (0, 1], so that its logarithm is finite.
  const auto words = block(counter);
  const double radius_draw = static_cast<double>((whole(words[0], words[1]) >> 11) + 1) * 0x1p-53;
  const double angle_draw = static_cast<double>(whole(words[2], words[3]) >> 11) * 0x1p-53;
  return std::sqrt(-2 * portable_log(radius_draw)) * portable_cos_turns(angle_draw);
}

uint64_t RandomKey::below(uint64_t counter, uint64_t bound) const {
  MILLRACE_CHECK(bound >= 1, "RandomKey::below needs a bound of at least 1");
  return static_cast<uint64_t>((static_cast<Wide>(bits(counter)) * bound) >> 64);
}

std::vector<int64_t> permutation(const RandomKey& key, int64_t size) {
  MILLRACE_CHECK(size >= 0, "permutation of a negative size");
  std::vector<int64_t> items(static_cast<std::size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    items[static_cast<std::size_t>(i)] = i;
  }
  for (int64_t i = size - 1; i > 0; --i) {
    const uint64_t j = key.below(static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1);
    std::swap(items[static_cast<std::size_t>(i)], items[static_cast<std::size_t>(j)]);
  }
  return items;
}

}  // namespace millrace
