#include "millrace/base/document.h"

#include <algorithm>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/internal/parse.h"

namespace millrace {
namespace {

using Member = std::pair<std::string, Value>;

bool same_members(const std::vector<Member>& a, const std::vector<Member>& b) {
  if (a.size() != b.size()) {
    return false;
  }
  const bool same_order =
      std::equal(a.begin(), a.end(), b.begin(),
                 [](const auto& x, const auto& y) { return x.first == y.first; });
  if (same_order) {
    return std::equal(a.begin(), a.end(), b.begin(),
                      [](const auto& x, const auto& y) { return x.second == y.second; });
  }
  const auto sorted = [](const std::vector<Member>& members) {
    std::vector<const Member*> order;
    order.reserve(members.size());
    for (const Member& member : members) {
      order.push_back(&member);
    }
    std::sort(order.begin(), order.end(),
              [](const Member* x, const Member* y) { return x->first < y->first; });
    return order;
  };
  const auto x = sorted(a);
  const auto y = sorted(b);
  return std::equal(x.begin(), x.end(), y.begin(), [](const Member* p, const Member* q) {
    return p->first == q->first && p->second == q->second;
  });
}

}  // namespace

Value Value::of(bool v) {
  Value value;
  value.kind = Kind::kBool;
  value.boolean = v;
  return value;
}

Value Value::of(int64_t v) {
  Value value;
  value.kind = Kind::kInteger;
  value.integer = v;
  value.number = static_cast<double>(v);
  return value;
}

Value Value::of(double v) {
  Value value;
  value.kind = Kind::kFloat;
  value.number = v;
  return value;
}

Value Value::of(std::string v) {
  Value value;
  value.kind = Kind::kString;
  value.string = std::move(v);
  return value;
}

Value Value::list(std::vector<Value> items) {
  Value value;
  value.kind = Kind::kArray;
  value.array = std::move(items);
  return value;
}

Value Value::map() {
  Value value;
  value.kind = Kind::kObject;
  return value;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : object) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

Value& Value::set(std::string key, Value value) {
  if (kind == Kind::kNull) {
    kind = Kind::kObject;
  }
  MILLRACE_CHECK(kind == Kind::kObject, "set() needs an object");
  for (auto& [name, old] : object) {
    if (name == key) {
      old = std::move(value);
      return old;
    }
  }
  object.emplace_back(std::move(key), std::move(value));
  return object.back().second;
}

bool Value::operator==(const Value& other) const {
  if (kind != other.kind) {
    return false;
  }
  switch (kind) {
    case Kind::kNull:
      return true;
    case Kind::kBool:
      return boolean == other.boolean;
    case Kind::kInteger:
      return integer == other.integer;
    case Kind::kFloat:
      return number == other.number;
    case Kind::kString:
      return string == other.string;
    case Kind::kArray:
      return array == other.array;
    case Kind::kObject:
      return same_members(object, other.object);
  }
  return false;
}

Document read_document(const std::string& path) {
  const std::string text = read_file(path, internal::kMaxDocumentBytes);
  const std::string_view body = internal::without_byte_order_mark(text);
  const std::size_t first = body.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && body[first] == '{';
  return json ? parse_json(text, path) : parse_toml(text, path);
}

}  // namespace millrace
