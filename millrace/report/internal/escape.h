// Text made harmless for where it is put.
#pragma once

#include <string>
#include <string_view>

namespace millrace::internal {

// For HTML and SVG, in text and in quoted attributes. Control characters that XML refuses become
// '?'.
std::string escape_markup(std::string_view text);

// A JSON string, quotes included, that may also stand inside a <script> element: '<' is written
// \u003c, so that no text ends the element.
std::string json_string(std::string_view text);

// Shortest decimals that keep nine digits; "null" for NaN and infinities, which JSON lacks.
std::string json_number(double value);

}  // namespace millrace::internal
