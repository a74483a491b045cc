// Half precision on the wire, sums in floats: 16 bits, rounded to nearest, ties to even. Numbers of
// 65520 and more become infinite and those below 2^-25 zero, so gradients may need scaling first.
//
// Source: Theano-MPI: a Theano-based Distributed Training Framework, arXiv:1605.08325, its strategy
// ASA16; also GradientFlow, arXiv:1902.06855.
#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

// Exponents are at bit 23 of a float with bias 127, at bit 10 of a half with bias 15.
struct Fp16 {
  static constexpr CodecBound kBound{0x1p-11, 0, 0x1p-25, 65504};

  static uint16_t narrow(uint32_t bits) {
    const uint32_t sign = bits & internal::kSignBit;
    const uint32_t rest = bits ^ sign;
    // Normal: move the bias, and add just under half an ulp, a whole half if the last bit is odd.
    const uint32_t normal = (rest + ((15U - 127U) << 23U) + 0xfffU + ((rest >> 13U) & 1U)) >> 13U;
    // Subnormal: adding 0.5 makes the float's own rounding drop what lies below 2^-24.
    constexpr uint32_t kHalfBits = 126U << 23U;
    const uint32_t small =
        std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(kHalfBits)) -
        kHalfBits;
    const uint32_t large = rest > internal::kInfinityBits ? 0x7e00U : 0x7c00U;
    uint32_t half = rest < (113U << 23U) ? small : normal;
    half = rest >= (143U << 23U) ? large : half;
    return static_cast<uint16_t>(half | (sign >> 16U));
  }

  static uint32_t widen(uint16_t half) {
    const uint32_t rest = (half & 0x7fffU) << 13U;
    const uint32_t exponent = rest & (0x7c00U << 13U);
    const uint32_t normal = rest + (112U << 23U);
    const uint32_t large = normal + (112U << 23U);
    constexpr uint32_t kLeastBits = 113U << 23U;  // 2^-14
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(rest + kLeastBits) -
                                                   std::bit_cast<float>(kLeastBits));
    uint32_t bits = exponent == 0 ? small : normal;
    bits = exponent == (0x7c00U << 13U) ? large : bits;
    return bits | ((half & 0x8000U) << 16U);
  }
};

}  // namespace

std::unique_ptr<Codec> fp16(const CodecOptions&) {
  return std::make_unique<internal::HalfCodec<Fp16>>();
}

}  // namespace millrace::builtin_codecs
