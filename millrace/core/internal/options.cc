#include "millrace/core/internal/options.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace millrace::internal {
namespace {

void refuse_non_finite(const Value& value, const Reader& reader, const std::string& key) {
  if (value.kind == Value::Kind::kFloat && !std::isfinite(value.number)) {
    throw reader.error(key, fmt::format("expected a finite number, found {}", value.number));
  }
  for (const Value& item : value.array) {
    refuse_non_finite(item, reader, key);
  }
  for (const auto& member : value.object) {
    refuse_non_finite(member.second, reader, key);
  }
}

}  // namespace

Value options_from(Reader& root, std::string_view key, std::string_view except) {
  const Reader reader = root.object(key);
  Value options = Value::map();
  for (const auto& [name, value] : root.raw(key)->object) {
    if (name != except) {
      refuse_non_finite(value, reader, name);
      options.set(name, value);
    }
  }
  return options;
}

}  // namespace millrace::internal
