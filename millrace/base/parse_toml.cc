#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/base/internal/parse.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

// Bounds the depth that a text can ask for before the library builds it: dotted keys nest without a
// limit there, and freeing such a tree would exhaust the call stack. It over-counts a little (a
// header's brackets, dots in numbers), which matters to nobody at this limit.
class DepthGuard {
 public:
  DepthGuard(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      step(c);
      ++at_;
    }
  }

 private:
  void step(char c) {
    switch (c) {
      case '\n':
        ++line_;
        dots_ = 0;
        break;
      case ',':
        dots_ = 0;
        break;
      case '.':
        ++dots_;
        check();
        break;
      case '[':
      case '{':
        depths_.push_back(depth() + dots_ + 1);
        dots_ = 0;
        check();
        break;
      case ']':
      case '}':
        if (!depths_.empty()) {
          depths_.pop_back();
        }
        dots_ = 0;
        break;
      default:
        break;
    }
  }

  int depth() const { return depths_.empty() ? 0 : depths_.back(); }

  void check() const {
    if (depth() + dots_ > internal::kMaxDepth) {
      throw internal::bad_file(file_, line_,
                               fmt::format("nested deeper than {}", internal::kMaxDepth));
    }
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multi_line = text_.substr(at_, 3) == triple;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        ++at_;  // whatever follows is part of the string; a newline still counts below
        if (at_ < text_.size() && text_[at_] == '\n') {
          ++line_;
        }
        ++at_;
        continue;
      }
      if (c == '\n') {
        if (!multi_line) {
          return;  // an unclosed string: the parser will say so
        }
        ++line_;
      }
      if (c == quote && (!multi_line || text_.substr(at_, 3) == triple)) {
        at_ += multi_line ? 3 : 1;
        return;
      }
      ++at_;
    }
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  int line_ = 1;
  int dots_ = 0;  // of the key being read, still standing when its value begins
  std::vector<int> depths_;
};

class Converter {
 public:
  explicit Converter(const std::string& file) : file_(file) {}

  Value convert(const toml::node& node, int depth) {
    const int line = static_cast<int>(node.source().begin.line);
    internal::count_value(num_values_, file_, line);
    if (depth > internal::kMaxDepth) {
      throw internal::bad_file(file_, line,
                               fmt::format("nested deeper than {}", internal::kMaxDepth));
    }
    Value value;
    switch (node.type()) {
      case toml::node_type::table:
        value = convert_table(*node.as_table(), depth);
        break;
      case toml::node_type::array:
        value.kind = Value::Kind::kArray;
        for (const toml::node& item : *node.as_array()) {
          value.array.push_back(convert(item, depth + 1));
        }
        break;
      case toml::node_type::string:
        value = Value::of(node.as_string()->get());
        break;
      case toml::node_type::integer:
        value = Value::of(node.as_integer()->get());
        break;
      case toml::node_type::floating_point:
        value = Value::of(node.as_floating_point()->get());
        break;
      case toml::node_type::boolean:
        value = Value::of(node.as_boolean()->get());
        break;
      default:
        throw internal::bad_file(file_, line,
                                 "dates and times have no use here; put text between quotes");
    }
    value.line = line;
    return value;
  }

 private:
  Value convert_table(const toml::table& table, int depth) {
    // The library sorts keys by name; put them back into file order.
    struct Member {
      const toml::key* key;
      const toml::node* node;
    };
    std::vector<Member> members;
    for (auto&& [key, node] : table) {
      members.push_back({&key, &node});
    }
    std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
      const auto& x = a.key->source().begin;
      const auto& y = b.key->source().begin;
      return std::pair(x.line, x.column) < std::pair(y.line, y.column);
    });
    Value value = Value::map();
    value.object.reserve(members.size());
    for (const Member& member : members) {
      value.object.emplace_back(std::string(member.key->str()), convert(*member.node, depth + 1));
      // A key stands on its value's first line, but tables made by dotted keys have no place.
      Value& added = value.object.back().second;
      if (added.line == 0) {
        added.line = static_cast<int>(member.key->source().begin.line);
      }
    }
    return value;
  }

  const std::string& file_;
  std::size_t num_values_ = 0;
};

std::string detail_of(std::string_view description) {
  if (description.find("redefine") != std::string_view::npos) {
    return fmt::format("duplicate key ({}); keep one of them", description.substr(0, 200));
  }
  return fmt::format("not valid TOML: {}", description.substr(0, 200));
}

}  // namespace

Document parse_toml(std::string_view text, std::string file) {
  internal::check_text(text, file);
  text = internal::without_byte_order_mark(text);
  DepthGuard(text, file).run();
  Document document;
  try {
    const toml::table table = toml::parse(text);
    document.root = Converter(file).convert(table, 0);
  } catch (const toml::parse_error& error) {
    throw internal::bad_file(file, static_cast<int>(error.source().begin.line),
                             detail_of(error.description()));
  }
  document.root.line = 1;
  document.file = std::move(file);
  return document;
}

}  // namespace millrace
