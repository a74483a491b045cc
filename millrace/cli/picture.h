// --draw of `schedule`, `simulate` and `report`: the forms and what makes them.
#pragma once

#include <string>
#include <vector>

#include "millrace/report/report.h"

namespace millrace::cli {

// Throws Error(kUnsupported) that names the forms when `form` is none of them.
void check_form(const std::string& form, const std::vector<std::string>& forms);

// The time-by-rank picture of a trace as a file's content; `form` is svg or html.
std::string picture(const std::string& form, const Trace& trace, const std::string& title,
                    TraceClock clock);

}  // namespace millrace::cli
