// The safetensors file format: eight bytes of header length, a JSON header, raw little-endian
// tensors.
#pragma once

#include <string>
#include <vector>

#include "millrace/train/session.h"

namespace millrace {

// The whole file as bytes; tensors in order, float32 and float64.
std::string encode_safetensors(const std::vector<NamedTensor>& tensors);

// Throws Error(kBadFile) naming the file and what is wrong: short, bad header, overlapping or
// uncovered bytes, unknown dtype, sizes that disagree.
std::vector<NamedTensor> decode_safetensors(const std::string& content, const std::string& file);

}  // namespace millrace
