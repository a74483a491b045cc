// Codecs: fewer bytes on the wire for a block of a collective program's message. Torch-free, over
// plain floats; a receiver decodes to floats and sums in those. Used by the executor in `comm`,
// which encodes each block of a message by itself (program.h), and for its wire sizes by cost.h.
//
// Whatever decode() gives, encoding and decoding it again as one block gives the same bits. So a
// finished chunk may pass through any number of members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace {

struct ParallelConfig;

// |x - decoded x| <= relative |x| + of_largest (largest finite magnitude of the block) + absolute,
// for every finite |x| <= up_to.
struct CodecBound {
  double relative = 0;
  double of_largest = 0;
  double absolute = 0;
  double up_to = std::numeric_limits<float>::max();
};

// Without state: any number of threads may use one. Bytes are in the machine's order.
class Codec {
 public:
  virtual ~Codec() = default;
  // Exact size of a block of n elements; 0 for none.
  virtual int64_t wire_bytes(int64_t n) const = 0;
  virtual CodecBound bound() const = 0;
  // `bytes` is of wire_bytes(values.size()). Zeros stay zeros and NaNs stay NaNs; infinities stay
  // infinities or become NaNs.
  virtual void encode(std::span<const float> values, std::span<std::byte> bytes) const = 0;
  virtual void decode(std::span<const std::byte> bytes, std::span<float> values) const = 0;
};

// Widths of `accept`; others have nothing to choose.
struct CodecOptions {
  int exponent_bits = 5;
  int mantissa_bits = 2;
};

// The registry: one file under codec/, one line in codec.def.
struct CodecEntry {
  std::string name;
  std::string text;
  std::string bytes;  // of n elements, as a formula
  std::string error;  // the bound in words
  // Throws Error(kInvalidArgument) for options out of range.
  std::unique_ptr<Codec> (*make)(const CodecOptions&);
};
const std::vector<CodecEntry>& codecs();
// Throws Error(kInvalidArgument) that names the nearest codec, or lists them all.
const CodecEntry& find_codec(const std::string& name);
// The one that [parallel] names, with its widths. Throws what find_codec and its factory throw.
std::unique_ptr<Codec> make_codec(const ParallelConfig& config);

}  // namespace millrace
