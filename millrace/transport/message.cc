#include "millrace/transport/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/core/action.h"

namespace millrace {
namespace {

// Numbers of at::ScalarType, which this half cannot include; a test of `comm` holds the two
// together.
constexpr std::array<const char*, 16> kDtypeNames = {
    "uint8",     "int8",      "int16",      "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool",  "qint8", "quint8",  "qint32",  "bfloat16"};

std::string dtype_name(uint8_t dtype) {
  return dtype < kDtypeNames.size() ? kDtypeNames[dtype] : fmt::format("dtype {}", dtype);
}

}  // namespace

std::string to_string(const MessageTag& tag) {
  if (tag.kind < kFirstEngineKind) {
    return fmt::format("{} of stage {}, microbatch {}{}",
                       to_string(static_cast<ActionKind>(tag.kind)), tag.stage, tag.microbatch,
                       tag.tensor == 0 ? "" : fmt::format(", tensor {}", tag.tensor));
  }
  if (tag.kind == kRuleMessage) {
    return fmt::format("exchange rule message {} of stage {}", tag.tensor, tag.stage);
  }
  return fmt::format("message kind {}, stage {}, number {}", tag.kind, tag.stage, tag.microbatch);
}

std::string to_string(const Fingerprint& fingerprint) {
  if (fingerprint.dtype == Fingerprint::kNoTensor) {
    return "no tensor";
  }
  if (fingerprint.dtype == Fingerprint::kBarrier) {
    return "a barrier";
  }
  const std::size_t num_sizes =
      std::min<std::size_t>(fingerprint.num_dimensions, fingerprint.sizes.size());
  std::vector<std::string> sizes;
  for (std::size_t i = 0; i < num_sizes; ++i) {
    sizes.push_back(std::to_string(fingerprint.sizes[i]));
  }
  if (fingerprint.num_dimensions > num_sizes) {
    sizes.back() += fmt::format(" in {} dimensions", fingerprint.num_dimensions - num_sizes + 1);
  }
  return fmt::format("{} [{}]", dtype_name(fingerprint.dtype), join(sizes, ", "));
}

}  // namespace millrace
