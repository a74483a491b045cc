// What the JSON and the TOML parser share: limits, and the checks on bytes before any parsing.
//
// Pure functions; private to base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/error.h"

namespace millrace::internal {

inline constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;
inline constexpr std::size_t kMaxValues = 5'000'000;
inline constexpr int kMaxDepth = 200;

// Refuses text that is blank, too long or not UTF-8.
void check_text(std::string_view text, const std::string& file);

// Offset of the first byte that is not part of well-formed UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);

// Length of the well-formed UTF-8 sequence at `at`, or 0.
std::size_t utf8_length(std::string_view text, std::size_t at);

std::string_view without_byte_order_mark(std::string_view text);

Error bad_file(const std::string& file, int line, std::string message);

// Throws when one more value would be too many.
void count_value(std::size_t& num_values, const std::string& file, int line);

}  // namespace millrace::internal
