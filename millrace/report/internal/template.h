// Pages with places for values.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace millrace::internal {

// Replaces each {{name}} by its value, once: what a value holds is never looked at again.
std::string fill(std::string_view page, const std::map<std::string_view, std::string>& values);

}  // namespace millrace::internal
