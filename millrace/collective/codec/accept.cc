// AccEPT's bit-level code: sign, exponent and mantissa of every element, each cut to a few bits and
// packed. The exponents of a tensor lie in a narrow range, so they are sent as distances below the
// block's largest, in e bits, which stands once in front; of the mantissa the upper k bits stay.
//
// Code 0 is zero, the highest one infinities and NaNs; between them stand 2^e - 2 exponents, the
// highest of which is the block's largest. What lies below becomes zero, and so do subnormals. Only
// shifts and masks touch the numbers, so nothing is rounded but towards zero, and what was decoded
// is encoded again without change.
//
// Source: AccEPT: An Acceleration Scheme for Speeding Up Edge Pipeline-parallel Training, TMC 2024,
// its bit-level compression. The field widths were not available: the layout is ours (a
// reconstruction), and e and k are to be chosen.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

// As many codes are made, or read, in one loop of vector instructions; a multiple of 32, so that
// every batch but the last fills whole words of 32 bits.
constexpr std::size_t kBatch = 512;
using Codes = std::array<uint16_t, kBatch>;

class Accept final : public Codec {
 public:
  Accept(int exponent_bits, int mantissa_bits)
      : exponent_bits_(static_cast<uint32_t>(exponent_bits)),
        mantissa_bits_(static_cast<uint32_t>(mantissa_bits)),
        width_(1 + exponent_bits_ + mantissa_bits_),
        not_finite_((1 << exponent_bits_) - 1) {}

  int64_t wire_bytes(int64_t n) const override { return n == 0 ? 0 : 1 + (n * width_ + 7) / 8; }

  CodecBound bound() const override {
    return {std::ldexp(1.0, -static_cast<int>(mantissa_bits_)),
            std::ldexp(1.0, 3 - (1 << exponent_bits_)), 0x1p-126};
  }

  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (values.empty()) {
      return;
    }
    const int32_t largest = largest_exponent(values);
    bytes[0] = static_cast<std::byte>(largest);
    bytes = bytes.subspan(1);
    Codes codes;
    for (std::size_t begin = 0; begin < values.size(); begin += kBatch) {
      const std::size_t count = std::min(kBatch, values.size() - begin);
      make_codes(values.data() + begin, count, largest, codes);
      const std::size_t num_bytes = (count * width_ + 7) / 8;
      pack(codes, count, bytes.data());
      bytes = bytes.subspan(num_bytes);
    }
  }

  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (values.empty()) {
      return;
    }
    const auto largest = std::to_integer<int32_t>(bytes[0]);
    bytes = bytes.subspan(1);
    Codes codes;
    for (std::size_t begin = 0; begin < values.size(); begin += kBatch) {
      const std::size_t count = std::min(kBatch, values.size() - begin);
      const std::size_t num_bytes = (count * width_ + 7) / 8;
      unpack(bytes.first(num_bytes), count, codes);
      read_codes(codes, count, largest, values.data() + begin);
      bytes = bytes.subspan(num_bytes);
    }
  }

 private:
  // The exponent field of the largest finite magnitude; 0 where all is zero or subnormal.
  static int32_t largest_exponent(std::span<const float> values) {
    int32_t largest = 0;
    for (const float value : values) {
      const auto exponent = static_cast<int32_t>((std::bit_cast<uint32_t>(value) >> 23U) & 0xffU);
      largest = std::max(largest, exponent < 255 ? exponent : 0);
    }
    return largest;
  }

  void make_codes(const float* values, std::size_t count, int32_t largest, Codes& codes) const {
    const uint32_t dropped = 23 - mantissa_bits_;
    const uint32_t quiet = 1U << (mantissa_bits_ - 1);
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      const auto exponent = static_cast<int32_t>((bits >> 23U) & 0xffU);
      const uint32_t fraction = bits & 0x7fffffU;
      const bool finite = exponent < 255;
      int32_t code = exponent - largest + not_finite_ - 1;
      code = (exponent > 0 && code > 0) ? code : 0;
      uint32_t mantissa = code > 0 ? fraction >> dropped : 0;
      code = finite ? code : not_finite_;
      mantissa = finite ? mantissa : (fraction != 0 ? quiet : 0);
      codes[i] = static_cast<uint16_t>((bits >> 31U) << (width_ - 1) |
                                       static_cast<uint32_t>(code) << mantissa_bits_ | mantissa);
    }
  }

  void read_codes(const Codes& codes, std::size_t count, int32_t largest, float* values) const {
    const uint32_t mantissa_mask = (1U << mantissa_bits_) - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const uint32_t all = codes[i];
      const auto code =
          static_cast<int32_t>((all >> mantissa_bits_) & static_cast<uint32_t>(not_finite_));
      int32_t exponent = code == not_finite_ ? 255 : largest - (not_finite_ - 1) + code;
      exponent = code == 0 ? 0 : exponent;
      values[i] = std::bit_cast<float>(((all >> (width_ - 1)) & 1U) << 31U |
                                       static_cast<uint32_t>(exponent) << 23U |
                                       (all & mantissa_mask) << (23 - mantissa_bits_));
    }
  }

  // Codes one after another from the lowest bit up, 32 bits at a time.
  void pack(const Codes& codes, std::size_t count, std::byte* bytes) const {
    uint64_t word = 0;
    uint32_t filled = 0;
    for (std::size_t i = 0; i < count; ++i) {
      word |= uint64_t{codes[i]} << filled;
      filled += width_;
      if (filled >= 32) {
        std::memcpy(bytes, &word, 4);
        bytes += 4;
        word >>= 32U;
        filled -= 32;
      }
    }
    std::memcpy(bytes, &word, (filled + 7) / 8);
  }

  void unpack(std::span<const std::byte> bytes, std::size_t count, Codes& codes) const {
    const uint64_t mask = (uint64_t{1} << width_) - 1;
    uint64_t word = 0;
    uint32_t filled = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (filled < width_) {
        uint32_t next = 0;
        const std::size_t taken = std::min<std::size_t>(4, bytes.size());
        std::memcpy(&next, bytes.data(), taken);
        bytes = bytes.subspan(taken);
        word |= uint64_t{next} << filled;
        filled += 32;
      }
      codes[i] = static_cast<uint16_t>(word & mask);
      word >>= width_;
      filled -= width_;
    }
  }

  uint32_t exponent_bits_;
  uint32_t mantissa_bits_;
  uint32_t width_;
  int32_t not_finite_;  // the highest exponent code
};

}  // namespace

std::unique_ptr<Codec> accept(const CodecOptions& options) {
  const int e = options.exponent_bits;
  const int k = options.mantissa_bits;
  if (e < 2 || e > 8 || k < 1 || k > 13 || 1 + e + k > 16) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec accept: expected 2 to 8 exponent bits, at least 1 mantissa bit "
                            "and at most 16 bits with the sign, found {} and {}",
                            e, k));
  }
  return std::make_unique<Accept>(e, k);
}

}  // namespace millrace::builtin_codecs
