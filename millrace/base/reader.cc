#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/document.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kMostKeysListed = 12;

// How a message shows a value that was found: its kind, and the value where it is short.
std::string found(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Value::Kind::kInteger:
      return fmt::format("{}", value.integer);
    case Value::Kind::kFloat:
      return fmt::format("{}", value.number);
    case Value::Kind::kString:
      return "the text " + in_quotes(value.string);
    case Value::Kind::kArray:
      return fmt::format("a list of {}", value.array.size());
    case Value::Kind::kObject:
      return fmt::format("a table of {} keys", value.object.size());
  }
  return "";
}

std::string item_name(std::string_view key, std::size_t index) {
  return fmt::format("{}[{}]", key, index);
}

Error wrong_type(const Reader& reader, std::string_view key, const Value& value,
                 std::string_view expected) {
  Error error = reader.error(key, fmt::format("expected {}, found {}", expected, found(value)));
  // An item of a list may stand lines below its key.
  if (value.line > 0) {
    error.in_file(reader.file(), value.line);
  }
  return error;
}

// `key` names the value in errors.
const std::string& as_text(const Reader& reader, std::string_view key, const Value& value) {
  if (value.kind != Value::Kind::kString) {
    throw wrong_type(reader, key, value, "text between quotes");
  }
  return value.string;
}

int64_t as_integer(const Reader& reader, std::string_view key, const Value& value) {
  if (value.kind != Value::Kind::kInteger) {
    throw wrong_type(reader, key, value, "a whole number");
  }
  return value.integer;
}

double as_number(const Reader& reader, std::string_view key, const Value& value) {
  if (value.kind != Value::Kind::kInteger && value.kind != Value::Kind::kFloat) {
    throw wrong_type(reader, key, value, "a number");
  }
  if (!std::isfinite(value.number)) {
    throw wrong_type(reader, key, value, "a finite number");
  }
  return value.number;
}

const std::vector<Value>& as_list(const Reader& reader, std::string_view key, const Value& value) {
  if (value.kind != Value::Kind::kArray) {
    throw wrong_type(reader, key, value, "a list");
  }
  return value.array;
}

}  // namespace

Reader::Reader(const Document& document)
    : file_(std::make_shared<const std::string>(document.file)), value_(&document.root) {
  if (value_->kind != Value::Kind::kObject) {
    throw wrong_type(*this, "", *value_, "an object");
  }
}

Reader::Reader(std::shared_ptr<const std::string> file, const Value* value, std::string path)
    : file_(std::move(file)), value_(value), path_(std::move(path)) {
  if (value_->kind != Value::Kind::kObject) {
    throw wrong_type(*this, "", *value_, "a table of keys");
  }
}

bool Reader::has(std::string_view key) const { return value_->find(key) != nullptr; }

const Value* Reader::raw(std::string_view key) {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) {
    asked_.emplace_back(key);
  }
  return value_->find(key);
}

const Value& Reader::need(std::string_view key) {
  const Value* value = raw(key);
  if (value == nullptr) {
    std::vector<std::string> unread;
    for (const auto& member : value_->object) {
      if (std::find(asked_.begin(), asked_.end(), member.first) == asked_.end()) {
        unread.push_back(member.first);
      }
    }
    const std::string near = nearest(key, unread);
    throw error(key, near.empty() ? std::string("this key is missing; add it")
                                  : fmt::format("this key is missing; is {} meant to be it?",
                                                in_quotes(near)));
  }
  return *value;
}

std::string Reader::text(std::string_view key) { return as_text(*this, key, need(key)); }

int64_t Reader::integer(std::string_view key) { return as_integer(*this, key, need(key)); }

double Reader::number(std::string_view key) { return as_number(*this, key, need(key)); }

bool Reader::boolean(std::string_view key) {
  const Value& value = need(key);
  if (value.kind != Value::Kind::kBool) {
    throw wrong_type(*this, key, value, "true or false");
  }
  return value.boolean;
}

std::vector<std::string> Reader::texts(std::string_view key) {
  std::vector<std::string> result;
  for (const Value& item : as_list(*this, key, need(key))) {
    result.push_back(as_text(*this, item_name(key, result.size()), item));
  }
  return result;
}

std::vector<int64_t> Reader::integers(std::string_view key) {
  std::vector<int64_t> result;
  for (const Value& item : as_list(*this, key, need(key))) {
    result.push_back(as_integer(*this, item_name(key, result.size()), item));
  }
  return result;
}

std::vector<double> Reader::numbers(std::string_view key) {
  std::vector<double> result;
  for (const Value& item : as_list(*this, key, need(key))) {
    result.push_back(as_number(*this, item_name(key, result.size()), item));
  }
  return result;
}

Reader Reader::object(std::string_view key) {
  const Value& value = need(key);
  return Reader(file_, &value, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

std::vector<Reader> Reader::objects(std::string_view key) {
  std::vector<Reader> result;
  const std::string prefix = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  for (const Value& item : as_list(*this, key, need(key))) {
    result.push_back(Reader(file_, &item, item_name(prefix, result.size())));
  }
  return result;
}

std::string Reader::text(std::string_view key, std::string_view fallback) {
  return raw(key) == nullptr ? std::string(fallback) : text(key);
}

int64_t Reader::integer(std::string_view key, int64_t fallback) {
  return raw(key) == nullptr ? fallback : integer(key);
}

double Reader::number(std::string_view key, double fallback) {
  return raw(key) == nullptr ? fallback : number(key);
}

bool Reader::boolean(std::string_view key, bool fallback) {
  return raw(key) == nullptr ? fallback : boolean(key);
}

double Reader::quantity(std::string_view key) {
  const double value = number(key);
  if (value < 0) {
    throw error(key, fmt::format("expected 0 or more, found {}", value));
  }
  return value;
}

double Reader::quantity(std::string_view key, double fallback) {
  return raw(key) == nullptr ? fallback : quantity(key);
}

int64_t Reader::count(std::string_view key, int64_t least) {
  const int64_t value = integer(key);
  if (value < least) {
    throw error(key, fmt::format("expected {} or more, found {}", least, value));
  }
  return value;
}

int64_t Reader::count(std::string_view key, int64_t least, int64_t fallback) {
  return raw(key) == nullptr ? fallback : count(key, least);
}

void Reader::finish() const {
  std::vector<std::string> unknown;
  for (const auto& member : value_->object) {
    if (std::find(asked_.begin(), asked_.end(), member.first) == asked_.end()) {
      unknown.push_back(member.first);
      if (unknown.size() > kMostKeysListed) {
        break;
      }
    }
  }
  if (unknown.empty()) {
    return;
  }
  std::string message = "unknown key" + did_you_mean(unknown[0], asked_);
  if (message == "unknown key" && !asked_.empty() && asked_.size() <= kMostKeysListed) {
    message += "; known here: " + join(asked_, ", ");
  }
  if (unknown.size() > 1) {
    std::vector<std::string> others;
    for (std::size_t i = 1; i < std::min(unknown.size(), kMostKeysListed); ++i) {
      others.push_back(in_quotes(unknown[i]));
    }
    message += fmt::format(" (unknown too: {}{})", join(others, ", "),
                           unknown.size() > kMostKeysListed ? ", ..." : "");
  }
  throw error(unknown[0], message);
}

Error Reader::error(std::string_view key, const std::string& message) const {
  const std::size_t bracket = std::min(key.find('['), key.size());
  const Value* member = value_->find(key);
  if (member == nullptr) {
    member = value_->find(key.substr(0, bracket));  // "layers[2]" stands where "layers" does
  }
  // A key of a file is any text; in a message it must stay on its line.
  const std::string shown = in_quotes(key);
  const std::string name = shown.size() == key.size() + 2 ? std::string(key) : shown;
  Error result(ErrorCode::kInvalidArgument, message);
  const Value& place = member != nullptr ? *member : *value_;
  if (place.origin != nullptr) {
    result.in_file(*place.origin);
  } else {
    result.in_file(*file_, place.line > 0 ? place.line : value_->line);
  }
  if (key.empty()) {
    result.at_key(path_);
  } else {
    result.at_key(path_.empty() ? name : path_ + "." + name);
  }
  return result;
}

void expect_artifact(Reader& reader, std::string_view artifact, int version) {
  const std::string found_artifact = reader.text("artifact");
  if (found_artifact != artifact) {
    throw reader.error("artifact", fmt::format("expected a {} file, found {}", artifact,
                                               in_quotes(found_artifact)));
  }
  const int64_t found_version = reader.integer("version");
  if (found_version != version) {
    throw reader.error(
        "version",
        fmt::format("expected version {}, found {}; make the file anew with this program", version,
                    found_version));
  }
}

}  // namespace millrace
