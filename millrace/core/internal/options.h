// Tables whose keys are another part's: options of a model, a dataset, an exchange rule. They are
// taken as they are, but a number must be one. Private to core.
#pragma once

#include <string_view>

#include "millrace/base/document.h"

namespace millrace::internal {

// All keys of the table at `key` but `except`, as an object. Throws at a number that is not finite.
Value options_from(Reader& root, std::string_view key, std::string_view except = "");

}  // namespace millrace::internal
