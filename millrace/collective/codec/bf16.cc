// bfloat16 on the wire, sums in floats: the upper 16 bits of a float, rounded to nearest, ties to
// even. A float's range with 8 significant bits, so gradients need no scaling.
//
// Source: the format of A Study of BFLOAT16 for Deep Learning Training, arXiv:1905.12322.
#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

struct Bf16 {
  // Half a unit in the last place: 2^-8 of a normal number, 2^-134 of a subnormal one.
  static constexpr CodecBound kBound{0x1p-8, 0, 0x1p-134, 0x1.fep127};

  static uint16_t narrow(uint32_t bits) {
    const uint32_t rounded = bits + 0x7fffU + ((bits >> 16U) & 1U);
    const bool is_nan = (bits & ~internal::kSignBit) > internal::kInfinityBits;
    return static_cast<uint16_t>((is_nan ? bits | internal::kQuietBit : rounded) >> 16U);
  }

  static uint32_t widen(uint16_t half) { return uint32_t{half} << 16U; }
};

}  // namespace

std::unique_ptr<Codec> bf16(const CodecOptions&) {
  return std::make_unique<internal::HalfCodec<Bf16>>();
}

}  // namespace millrace::builtin_codecs
