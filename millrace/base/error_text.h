// Errors on their way to another process: as one line of JSON, and back. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "millrace/base/error.h"

namespace millrace {

// At most `most` bytes; where it would be longer, the message is cut.
std::string to_text(const Error& error, std::size_t most);
// Text that is none of to_text() becomes a kInternal error that quotes it.
Error error_from_text(const std::string& text);

}  // namespace millrace
