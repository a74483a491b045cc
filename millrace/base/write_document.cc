#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "millrace/base/document.h"
#include "millrace/base/internal/parse.h"

namespace millrace {
namespace {

constexpr std::size_t kLineWidth = 100;

bool is_container(const Value& value) {
  return value.kind == Value::Kind::kArray || value.kind == Value::Kind::kObject;
}

// Shortest digits that read back to the same double, with a mark that it is no whole number.
void append_double(std::string& out, double value) {
  MILLRACE_CHECK(std::isfinite(value), "a number that is not finite cannot be written");
  std::array<char, 32> buffer = {};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  const std::string_view digits(buffer.data(),
                                static_cast<std::size_t>(result.ptr - buffer.data()));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) {
    out += ".0";
  }
}

// JSON and TOML share these escapes; TOML also wants DEL escaped, which JSON allows.
void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = internal::utf8_length(text, i);
    if (length != 1) {
      out += length == 0 ? std::string_view("\\ufffd") : text.substr(i, length);
      i += length == 0 ? 1 : length;
      continue;
    }
    const char c = text[i++];
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_scalar(std::string& out, const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      out += "null";
      break;
    case Value::Kind::kBool:
      out += value.boolean ? "true" : "false";
      break;
    case Value::Kind::kInteger:
      out += std::to_string(value.integer);
      break;
    case Value::Kind::kFloat:
      append_double(out, value.number);
      break;
    case Value::Kind::kString:
      append_string(out, value.string);
      break;
    default:
      break;
  }
}

void append_json_line(std::string& out, const Value& value) {
  if (value.kind == Value::Kind::kArray) {
    out += '[';
    for (std::size_t i = 0; i < value.array.size(); ++i) {
      out += i == 0 ? "" : ", ";
      append_json_line(out, value.array[i]);
    }
    out += ']';
  } else if (value.kind == Value::Kind::kObject) {
    out += '{';
    for (std::size_t i = 0; i < value.object.size(); ++i) {
      out += i == 0 ? "" : ", ";
      append_string(out, value.object[i].first);
      out += ": ";
      append_json_line(out, value.object[i].second);
    }
    out += '}';
  } else {
    append_scalar(out, value);
  }
}

bool holds_containers(const Value& value) {
  for (const Value& item : value.array) {
    if (is_container(item)) {
      return true;
    }
  }
  for (const auto& member : value.object) {
    if (is_container(member.second)) {
      return true;
    }
  }
  return false;
}

// `used` columns of the current line are taken.
void append_json(std::string& out, const Value& value, int indent, int depth, std::size_t used) {
  if (!is_container(value)) {
    append_scalar(out, value);
    return;
  }
  const bool is_array = value.kind == Value::Kind::kArray;
  const bool empty = is_array ? value.array.empty() : value.object.empty();
  if (empty || (depth > 0 && !holds_containers(value))) {
    const std::size_t start = out.size();
    append_json_line(out, value);
    if (empty || used + out.size() - start < kLineWidth) {
      return;
    }
    out.resize(start);
  }
  const std::string inner(static_cast<std::size_t>(indent * (depth + 1)), ' ');
  const char* separator = "\n";
  out += is_array ? '[' : '{';
  for (const Value& item : value.array) {
    out += separator + inner;
    append_json(out, item, indent, depth + 1, inner.size());
    separator = ",\n";
  }
  for (const auto& [key, member] : value.object) {
    out += separator + inner;
    const std::size_t start = out.size();
    append_string(out, key);
    out += ": ";
    append_json(out, member, indent, depth + 1, inner.size() + out.size() - start);
    separator = ",\n";
  }
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(depth), ' ');
  out += is_array ? ']' : '}';
}

std::string toml_key(const std::string& key) {
  const bool bare = !key.empty() && key.find_first_not_of(
                                        "abcdefghijklmnopqrstuvwxyz"
                                        "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789_-") == std::string::npos;
  if (bare) {
    return key;
  }
  std::string text;
  append_string(text, key);
  return text;
}

void append_toml_inline(std::string& out, const Value& value) {
  MILLRACE_CHECK(value.kind != Value::Kind::kNull, "TOML has no null");
  if (value.kind == Value::Kind::kArray) {
    out += '[';
    for (std::size_t i = 0; i < value.array.size(); ++i) {
      out += i == 0 ? "" : ", ";
      append_toml_inline(out, value.array[i]);
    }
    out += ']';
  } else if (value.kind == Value::Kind::kObject) {
    out += value.object.empty() ? "{" : "{ ";
    for (std::size_t i = 0; i < value.object.size(); ++i) {
      out += i == 0 ? "" : ", ";
      out += toml_key(value.object[i].first) + " = ";
      append_toml_inline(out, value.object[i].second);
    }
    out += value.object.empty() ? "}" : " }";
  } else {
    append_scalar(out, value);
  }
}

bool is_table_list(const Value& value) {
  if (value.kind != Value::Kind::kArray || value.array.empty()) {
    return false;
  }
  for (const Value& item : value.array) {
    if (item.kind != Value::Kind::kObject) {
      return false;
    }
  }
  return true;
}

void append_toml_table(std::string& out, const Value& table, const std::string& prefix) {
  for (const auto& [key, value] : table.object) {
    if (value.kind != Value::Kind::kObject && !is_table_list(value)) {
      out += toml_key(key) + " = ";
      append_toml_inline(out, value);
      out += '\n';
    }
  }
  for (const auto& [key, value] : table.object) {
    const std::string path = prefix.empty() ? toml_key(key) : prefix + "." + toml_key(key);
    const auto header = [&out](const std::string& line) {
      out += out.empty() ? "" : "\n";
      out += line + "\n";
    };
    if (value.kind == Value::Kind::kObject) {
      header("[" + path + "]");
      append_toml_table(out, value, path);
    } else if (is_table_list(value)) {
      for (const Value& item : value.array) {
        header("[[" + path + "]]");
        append_toml_table(out, item, path);
      }
    }
  }
}

}  // namespace

std::string to_json(const Value& value, int indent) {
  std::string out;
  if (indent < 0) {
    append_json_line(out, value);
  } else {
    append_json(out, value, indent, 0, 0);
    out += '\n';
  }
  return out;
}

std::string to_toml(const Value& value) {
  MILLRACE_CHECK(value.kind == Value::Kind::kObject, "a TOML document is an object");
  std::string out;
  append_toml_table(out, value, "");
  return out;
}

}  // namespace millrace
