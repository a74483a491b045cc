#include "millrace/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// Longer words are never compared: nobody mistypes a name of that length, and the table is
// quadratic.
constexpr std::size_t kLongestWord = 64;

// Edit distance in which swapping two neighbours counts once (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> before(columns), previous(columns), current(columns);
  for (std::size_t j = 0; j < columns; ++j) {
    previous[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replace, previous[j] + 1, current[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string initials(std::string_view word) {
  std::string result;
  bool start = true;
  for (const char c : word) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter && start) {
      result += c;
    }
    start = !letter;
  }
  return result;
}

// Columns that a UTF-8 text takes, taking every code point as one.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// `value` with about four significant digits: 1.234, 12.3, 123.
std::string short_number(double value) {
  const double size = std::fabs(value);
  const int digits = size < 9.9995 ? 3 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) {
    return "";
  }
  const std::string wanted = lower(word);
  const std::size_t limit = std::max<std::size_t>(2, word.size() / 3);
  std::size_t best_distance = limit + 1;
  const std::string* best = nullptr;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(word.size(), candidate.size());
    if (candidate.size() > kLongestWord ||
        longer - std::min(word.size(), candidate.size()) > limit) {
      continue;
    }
    const std::size_t distance = edit_distance(wanted, lower(candidate));
    // At the full length every letter was replaced: two words of two letters are not "near".
    if (distance < best_distance && distance < longer) {
      best_distance = distance;
      best = &candidate;
    }
  }
  if (best != nullptr) {
    return *best;
  }
  const std::string short_form = initials(wanted);
  if (short_form.size() >= 2) {
    for (const std::string& candidate : candidates) {
      if (candidate == short_form) {
        return candidate;
      }
    }
  }
  return "";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean `{}`?", near);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string result = "`";
  std::size_t shown = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    // Cut only where a code point begins.
    if (shown >= kMost && (byte & 0xC0) != 0x80) {
      result += "...";
      break;
    }
    ++shown;
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (c == '\r') {
      result += "\\r";
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + "`";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      result += separator;
    }
    result += parts[i];
  }
  return result;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) {
      return parts;
    }
    begin = end + 1;
  }
}

std::string trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) {
    return "";
  }
  return std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

std::string format_seconds(double seconds) {
  const double size = std::fabs(seconds);
  if (!std::isfinite(seconds) || size == 0) {
    return fmt::format("{} s", seconds);
  }
  // Borders lie where the next smaller unit would round up to 1000.
  if (size >= 0.9995) {
    return size < 1e6 ? short_number(seconds) + " s" : fmt::format("{:.3g} s", seconds);
  }
  if (size >= 0.9995e-3) {
    return short_number(seconds * 1e3) + " ms";
  }
  if (size >= 0.9995e-6) {
    return short_number(seconds * 1e6) + " us";
  }
  return size >= 1e-12 ? short_number(seconds * 1e9) + " ns" : fmt::format("{:.3g} s", seconds);
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (!std::isfinite(bytes)) {
    return fmt::format("{} B", bytes);
  }
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 999.95 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{:.0f} B", bytes);
  }
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_count(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

TextTable::TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void TextTable::row(std::vector<std::string> cells) {
  MILLRACE_CHECK(cells.size() <= rows_.front().size(),
                 "a table row has more cells than its header");
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::str() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& cells : rows_) {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      widths[c] = std::max(widths[c], width_of(cells[c]));
    }
  }
  std::string text;
  const auto add_line = [&text](std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    std::string rule;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string& cell = rows_[r][c];
      const std::string fill(widths[c] - width_of(cell), ' ');
      line.append(c == 0 ? cell : "  ").append(fill).append(c == 0 ? "" : cell);
      rule += (c == 0 ? "" : "  ") + std::string(widths[c], '-');
    }
    add_line(std::move(line));
    if (r == 0) {
      add_line(std::move(rule));
    }
  }
  return text;
}

}  // namespace millrace
