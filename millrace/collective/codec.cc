// The table of codecs; see registry.cc for why codec.def is read twice.
#include "millrace/collective/codec.h"

#include "millrace/base/find_entry.h"
#include "millrace/collective/internal/codecs.h"
#include "millrace/core/run_config.h"

namespace millrace {

const std::vector<CodecEntry>& codecs() {
  static const std::vector<CodecEntry> entries = {
#define CODEC(name, symbol, text, bytes, error) {name, text, bytes, error, &builtin_codecs::symbol},
#include "millrace/collective/codec.def"
#undef CODEC
  };
  return entries;
}

const CodecEntry& find_codec(const std::string& name) {
  return find_entry(codecs(), name, "a codec");
}

std::unique_ptr<Codec> make_codec(const ParallelConfig& config) {
  CodecOptions options;
  options.exponent_bits = config.codec_exponent_bits.value_or(options.exponent_bits);
  options.mantissa_bits = config.codec_mantissa_bits.value_or(options.mantissa_bits);
  return find_codec(config.codec).make(options);
}

}  // namespace millrace
