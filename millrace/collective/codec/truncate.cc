// Truncation: the upper 16 bits of a float as they are. Cheapest of all and always towards zero, so
// sums shrink; `bf16` rounds at the same size.
//
// Source: Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training,
// NeurIPS 2018, its compression by truncation.
#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

struct Truncate {
  static constexpr CodecBound kBound{0x1p-7, 0, 0x1p-133};

  // A NaN whose only bits are low ones would turn into an infinity.
  static uint16_t narrow(uint32_t bits) {
    const bool is_nan = (bits & ~internal::kSignBit) > internal::kInfinityBits;
    return static_cast<uint16_t>((is_nan ? bits | internal::kQuietBit : bits) >> 16U);
  }

  static uint32_t widen(uint16_t half) { return uint32_t{half} << 16U; }
};

}  // namespace

std::unique_ptr<Codec> truncate(const CodecOptions&) {
  return std::make_unique<internal::HalfCodec<Truncate>>();
}

}  // namespace millrace::builtin_codecs
