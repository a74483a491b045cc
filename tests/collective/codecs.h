// The codecs that property tests run: every entry, and `accept` in several widths.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "millrace/collective/codec.h"

namespace millrace {

// Replaces a block by what its receiver decodes.
inline void pass_through(const Codec& codec, float* block, int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(codec.wire_bytes(n)));
  const std::span<float> values(block, static_cast<std::size_t>(n));
  codec.encode(values, bytes);
  codec.decode(bytes, values);
}

inline std::vector<float> passed(const Codec& codec, std::vector<float> block) {
  pass_through(codec, block.data(), static_cast<int64_t>(block.size()));
  return block;
}

template <typename Use>
void for_all_codecs(const Use& use) {
  for (const CodecEntry& entry : codecs()) {
    use(entry.name, *entry.make({}));
  }
  const CodecEntry& accept = find_codec("accept");
  for (const CodecOptions& widths :
       {CodecOptions{8, 7}, {6, 5}, {3, 2}, {5, 10}, {2, 13}, {4, 3}, {7, 2}, {8, 1}}) {
    use(fmt::format("accept:{},{}", widths.exponent_bits, widths.mantissa_bits),
        *accept.make(widths));
  }
}

}  // namespace millrace
