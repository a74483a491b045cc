// Finding an entry of a registry by its name; all registries refuse an unknown one alike.
// Thread rule: pure.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {

// The entry of that name. Throws Error(kInvalidArgument) that says what was expected ("a planner")
// and names the nearest entry, or all of them where none is near.
template <typename Entry>
const Entry& find_entry(const std::vector<Entry>& entries, const std::string& name,
                        const char* what) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) {
    hint = fmt::format("; there are: {}", join(names, ", "));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected the name of {}, found {}{}", what, in_quotes(name), hint));
}

}  // namespace millrace
