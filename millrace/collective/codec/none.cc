// No compression: what others are compared with, and the default.
#include "millrace/collective/internal/codecs.h"

namespace millrace::builtin_codecs {
namespace {

class None final : public Codec {
 public:
  int64_t wire_bytes(int64_t n) const override { return 4 * n; }
  CodecBound bound() const override { return {}; }

  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (!values.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
  }

  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    internal::check_sizes(*this, values.size(), bytes.size());
    if (!values.empty()) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }
};

}  // namespace

std::unique_ptr<Codec> none(const CodecOptions&) { return std::make_unique<None>(); }

}  // namespace millrace::builtin_codecs
