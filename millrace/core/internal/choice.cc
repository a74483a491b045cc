#include "millrace/core/internal/choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::internal {
namespace {

// The error that `error` is, but for something valid that is not offered.
Error unsupported(const Error& error) {
  Error result(ErrorCode::kUnsupported, error.message());
  result.in_file(error.file().value_or(""), error.line().value_or(0));
  result.at_key(error.key().value_or(""));
  return result;
}

}  // namespace

std::string choice(Reader& reader, const char* key, const std::vector<std::string>& offered,
                   const std::string& fallback) {
  std::string value = reader.text(key, fallback);
  if (std::find(offered.begin(), offered.end(), value) == offered.end()) {
    std::vector<std::string> names;
    for (const std::string& name : offered) {
      names.push_back(in_quotes(name));
    }
    throw unsupported(
        reader.error(key, fmt::format("{} is not offered; use {}{}", in_quotes(value),
                                      join(names, " or "), did_you_mean(value, offered))));
  }
  return value;
}

}  // namespace millrace::internal
