#include "millrace/base/internal/parse.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::internal {

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return at < text.size() ? 1 : 0;
  }
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  if (first >= 0xC2 && first <= 0xDF) {
    return continues(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    // No overlong forms, no surrogates.
    const bool second_fits = first == 0xE0 ? byte(1) >= 0xA0 : (first != 0xED || byte(1) <= 0x9F);
    return second_fits && continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second_fits = first == 0xF0 ? byte(1) >= 0x90 : (first != 0xF4 || byte(1) <= 0x8F);
    return second_fits && continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return std::string_view::npos;
}

std::string_view without_byte_order_mark(std::string_view text) {
  return text.substr(0, 3) == "\xEF\xBB\xBF" ? text.substr(3) : text;
}

Error bad_file(const std::string& file, int line, std::string message) {
  Error error(ErrorCode::kBadFile, std::move(message));
  error.in_file(file, line);
  return error;
}

void count_value(std::size_t& num_values, const std::string& file, int line) {
  if (++num_values > kMaxValues) {
    throw bad_file(file, line,
                   fmt::format("the file holds more than {} values", format_count(kMaxValues)));
  }
}

void check_text(std::string_view text, const std::string& file) {
  if (text.size() > kMaxDocumentBytes) {
    throw bad_file(file, 0,
                   fmt::format("the file is larger than the {} that are read here",
                               format_bytes(static_cast<double>(kMaxDocumentBytes))));
  }
  if (without_byte_order_mark(text).find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw bad_file(file, 0, "the file is empty; expected a JSON object or a TOML document");
  }
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(invalid), '\n');
    throw bad_file(file, static_cast<int>(line) + 1,
                   fmt::format("byte 0x{:02x} is not UTF-8; save the file as UTF-8",
                               static_cast<unsigned char>(text[invalid])));
  }
}

}  // namespace millrace::internal
