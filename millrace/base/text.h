// Small text helpers shared by messages, tables and the command line. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// The candidate at the least edit distance from `word` (insert, delete, replace, swap of
// neighbours), or "" when none is near: distance above max(2, a third of the word), or no letter in
// common. Where none is near, a candidate that spells the initials of the word's parts is: lr for
// learning_rate.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean `x`?" or "" : the tail of an unknown-name message.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// `text` between backquotes, cut at 60 characters, control characters shown as \n, \t or \x1b: how
// messages show what a user wrote.
std::string in_quotes(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string trim(std::string_view text);

std::string format_seconds(double seconds);  // "1.234 s", "12.3 ms", "45.6 us"
std::string format_bytes(double bytes);      // "4.2 MB" (decimal units)
std::string format_count(int64_t count);     // "1,226,810"

// A left-aligned first column, right-aligned others; header underlined with dashes.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void row(std::vector<std::string> cells);
  std::string str() const;  // ends with a newline

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace millrace
