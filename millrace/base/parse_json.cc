#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/base/internal/parse.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

// Where the lexer stands in the text; shared by the iterator it reads through and the handler.
struct Cursor {
  const char* next = nullptr;     // first character not read yet
  const char* counted = nullptr;  // newlines before it are in `line`
  int line = 1;

  // Line of the token just read. The lexer reads one character beyond a number, which may be the
  // newline after it, so the last character read never counts.
  int current_line() {
    for (; counted + 1 < next; ++counted) {
      if (*counted == '\n') {
        ++line;
      }
    }
    return line;
  }
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Cursor* cursor) : at_(at), cursor_(cursor) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    cursor_->next = at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  Cursor* cursor_;
};

// "[json...] parse error at line 1, column 2: syntax error while parsing value - unexpected ..."
// The place is told by file and line; what is left is cut, as it quotes the text read so far.
std::string detail_of(std::string_view what) {
  const std::size_t column = what.find("column");
  const std::size_t colon = what.find(": ", column == std::string_view::npos ? 0 : column);
  if (colon != std::string_view::npos) {
    what.remove_prefix(colon + 2);
  } else if (const std::size_t bracket = what.find("] "); bracket != std::string_view::npos) {
    what.remove_prefix(bracket + 2);
  }
  constexpr std::size_t kMost = 200;
  std::string text;
  for (const char c : what.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte >= 0x20 && byte < 0x7F ? c : '?';
  }
  return what.size() > kMost ? text + "..." : text;
}

// Builds the tree. Pointers into it stay good: a list grows only when its last item is closed.
class Builder {
 public:
  Builder(Cursor* cursor, const std::string& file) : cursor_(cursor), file_(file) {}

  bool null() { return add({}); }
  bool boolean(bool v) { return add(Value::of(v)); }
  bool number_integer(int64_t v) { return add(Value::of(v)); }
  bool number_unsigned(uint64_t v) {
    if (v > static_cast<uint64_t>(INT64_MAX)) {
      refuse_integer(fmt::format("{}", v));
    }
    return add(Value::of(static_cast<int64_t>(v)));
  }
  bool number_float(double v, const std::string& text) {
    // What does not fit 64 bits arrives as a float.
    if (text.find_first_of(".eE") == std::string::npos) {
      refuse_integer(text);
    }
    return add(Value::of(v));
  }
  bool string(std::string& v) { return add(Value::of(std::move(v))); }
  bool binary(std::vector<uint8_t>& /*v*/) { return false; }  // no text has it

  bool start_object(std::size_t /*size*/) { return open(Value::Kind::kObject); }
  bool end_object() { return close(); }
  bool start_array(std::size_t /*size*/) { return open(Value::Kind::kArray); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      throw internal::bad_file(file_, cursor_->current_line(),
                               fmt::format("duplicate key {}; keep one of them", in_quotes(name)));
    }
    open_.back()->object.emplace_back(std::move(name), Value());
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) {
    throw internal::bad_file(file_, cursor_->current_line(),
                             "not valid JSON: " + detail_of(error.what()));
  }

  Value take() { return std::move(root_); }

 private:
  [[noreturn]] void refuse_integer(const std::string& text) {
    throw internal::bad_file(
        file_, cursor_->current_line(),
        fmt::format("the whole number {} does not fit 64 bits", in_quotes(text)));
  }

  Value* place(Value value) {
    value.line = cursor_->current_line();
    internal::count_value(num_values_, file_, value.line);
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Value& parent = *open_.back();
    if (parent.kind == Value::Kind::kArray) {
      parent.array.push_back(std::move(value));
      return &parent.array.back();
    }
    parent.object.back().second = std::move(value);
    return &parent.object.back().second;
  }

  bool add(Value value) {
    place(std::move(value));
    return true;
  }

  bool open(Value::Kind kind) {
    if (open_.size() >= static_cast<std::size_t>(internal::kMaxDepth)) {
      throw internal::bad_file(file_, cursor_->current_line(),
                               fmt::format("nested deeper than {}", internal::kMaxDepth));
    }
    Value value;
    value.kind = kind;
    open_.push_back(place(std::move(value)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Cursor* cursor_;
  const std::string& file_;
  Value root_;
  std::vector<Value*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each open value
  std::size_t num_values_ = 0;
};

}  // namespace

Document parse_json(std::string_view text, std::string file) {
  internal::check_text(text, file);
  text = internal::without_byte_order_mark(text);
  Cursor cursor;
  cursor.next = text.data();
  cursor.counted = text.data();
  Builder builder(&cursor, file);
  const bool done =
      nlohmann::json::sax_parse(CountingIterator(text.data(), &cursor),
                                CountingIterator(text.data() + text.size(), &cursor), &builder);
  MILLRACE_CHECK(done, "the JSON parser stopped without an error");
  Document document;
  document.root = builder.take();
  if (document.root.kind != Value::Kind::kObject) {
    throw internal::bad_file(file, document.root.line,
                             "expected a JSON object at the top: { ... }");
  }
  document.file = std::move(file);
  return document;
}

}  // namespace millrace
