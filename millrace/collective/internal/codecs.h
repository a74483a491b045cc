// The symbols that codec.def names, one a file under codec/, and the frame of those that give every
// element 16 bits. Used by the codecs and their registry only.
#pragma once

#include <bit>
#include <cstring>

#include "millrace/base/error.h"
#include "millrace/collective/codec.h"

namespace millrace {

namespace builtin_codecs {
#define CODEC(name, symbol, text, bytes, error) \
  std::unique_ptr<Codec> symbol(const CodecOptions& options);
#include "millrace/collective/codec.def"
#undef CODEC
}  // namespace builtin_codecs

namespace internal {

constexpr uint32_t kSignBit = 0x80000000U;
constexpr uint32_t kInfinityBits = 0x7f800000U;
constexpr uint32_t kQuietBit = 0x00400000U;

inline void check_sizes(const Codec& codec, std::size_t num_values, std::size_t num_bytes) {
  MILLRACE_CHECK(
      static_cast<int64_t>(num_bytes) == codec.wire_bytes(static_cast<int64_t>(num_values)),
      "a block and its bytes differ in size");
}

// `Half::narrow` turns the bits of a float into 16, `Half::widen` those into the bits of a float;
// both without branches, so that the loops become vector instructions.
template <typename Half>
class HalfCodec final : public Codec {
 public:
  int64_t wire_bytes(int64_t n) const override { return 2 * n; }
  CodecBound bound() const override { return Half::kBound; }

  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    check_sizes(*this, values.size(), bytes.size());
    const float* from = values.data();
    std::byte* to = bytes.data();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = Half::narrow(std::bit_cast<uint32_t>(from[i]));
      std::memcpy(to + 2 * i, &half, 2);
    }
  }

  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    check_sizes(*this, values.size(), bytes.size());
    const std::byte* from = bytes.data();
    float* to = values.data();
    for (std::size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      std::memcpy(&half, from + 2 * i, 2);
      to[i] = std::bit_cast<float>(Half::widen(half));
    }
  }
};

}  // namespace internal
}  // namespace millrace
