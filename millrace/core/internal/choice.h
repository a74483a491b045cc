// A key of run.toml whose value is one of a few words. Private to core.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/document.h"

namespace millrace::internal {

// The text at `key`, or `fallback` where the key is absent. Throws Error(kUnsupported) that lists
// what is offered.
std::string choice(Reader& reader, const char* key, const std::vector<std::string>& offered,
                   const std::string& fallback);

}  // namespace millrace::internal
