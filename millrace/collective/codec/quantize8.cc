// Scalar quantization to 8 bits: a block's elements as whole multiples, -127 to 127, of one scale
// that is sent with them in 8 bytes. The 256th code is for what is not finite.
//
// The scale is 1/127 of the block's largest magnitude, cut to 16 significant bits. So every
// multiple is a float exactly, the largest stays the 127th, and what was decoded is encoded again
// without change. Blocks of nothing but subnormal numbers become zeros.
//
// Source: Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training,
// NeurIPS 2018, its 8-bit scalar quantization; the choice of the scale is ours (a reconstruction).
#include <algorithm>

#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

constexpr std::size_t kScaleBytes = 8;
constexpr int32_t kNotFinite = -128;
// Below this a scale would lose bits as a float.
constexpr double kLeast = 0x1p-126;

class Quantize8 final : public Codec {
 public:
  int64_t wire_bytes(int64_t n) const override {
    return n == 0 ? 0 : n + static_cast<int64_t>(kScaleBytes);
  }
  // Half a scale, 1/254, and a little for the cut and the division's own rounding.
  CodecBound bound() const override { return {0, 1.0 / 253, 2 * kLeast}; }

  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (values.empty()) {
      return;
    }
    const float scale = scale_of(values);
    const auto sent = static_cast<double>(scale);
    std::memcpy(bytes.data(), &sent, kScaleBytes);
    // Adding 1.5 x 2^23 rounds to a whole number, which then stands in the lowest bits.
    constexpr float kRounder = 12582912.0F;
    const float divisor = scale > 0 ? scale : 1.0F;
    const float* from = values.data();
    std::byte* to = bytes.data() + kScaleBytes;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool finite =
          (std::bit_cast<uint32_t>(from[i]) & ~internal::kSignBit) < internal::kInfinityBits;
      const float rounded = (finite ? from[i] : 0.0F) / divisor + kRounder;
      const int32_t code = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRounder);
      to[i] = static_cast<std::byte>(finite ? code : kNotFinite);
    }
  }

  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (values.empty()) {
      return;
    }
    double sent = 0;
    std::memcpy(&sent, bytes.data(), kScaleBytes);
    const auto scale = static_cast<float>(sent);
    const std::byte* from = bytes.data() + kScaleBytes;
    float* to = values.data();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int32_t code = (std::to_integer<int32_t>(from[i]) ^ 0x80) - 0x80;  // its sign
      to[i] = code == kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                 : static_cast<float>(code) * scale;
    }
  }

 private:
  static float scale_of(std::span<const float> values) {
    int32_t largest = 0;  // bits of a magnitude, which are ordered as magnitudes are
    for (const float value : values) {
      const auto bits = static_cast<int32_t>(std::bit_cast<uint32_t>(value) & ~internal::kSignBit);
      largest = std::max(largest, bits < static_cast<int32_t>(internal::kInfinityBits) ? bits : 0);
    }
    // Double, for its range: 16 of 53 significant bits stay.
    constexpr uint64_t kCut = ~((uint64_t{1} << 37U) - 1);
    const double exact = static_cast<double>(std::bit_cast<float>(largest)) / 127;
    const double scale = std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & kCut);
    return scale * 127 < kLeast ? 0.0F : static_cast<float>(scale);
  }
};

}  // namespace

std::unique_ptr<Codec> quantize8(const CodecOptions&) { return std::make_unique<Quantize8>(); }

}  // namespace millrace::builtin_codecs
