#include "millrace/report/internal/template.h"

#include "millrace/base/error.h"

namespace millrace::internal {

std::string fill(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string text;
  while (true) {
    const std::size_t open = page.find("{{");
    text += page.substr(0, open);
    if (open == std::string_view::npos) {
      return text;
    }
    const std::size_t close = page.find("}}", open);
    MILLRACE_CHECK(close != std::string_view::npos, "the page template has an unclosed {{");
    const auto value = values.find(page.substr(open + 2, close - open - 2));
    MILLRACE_CHECK(value != values.end(), "the page template names a value that is not given");
    text += value->second;
    page.remove_prefix(close + 2);
  }
}

}  // namespace millrace::internal
