#include "millrace/cli/picture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::cli {

void check_form(const std::string& form, const std::vector<std::string>& forms) {
  if (std::find(forms.begin(), forms.end(), form) == forms.end()) {
    const std::vector<std::string> others(forms.begin(), forms.end() - 1);
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--draw {} is not offered{}; use {} or {}", in_quotes(form),
                            did_you_mean(form, forms), join(others, ", "), forms.back()));
  }
}

std::string picture(const std::string& form, const Trace& trace, const std::string& title,
                    TraceClock clock) {
  return form == "svg" ? timeline_svg(trace, title, clock) : timeline_html(trace, title, clock);
}

}  // namespace millrace::cli
