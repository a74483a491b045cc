// A kernel profile as text: its longest rows, then what to mend. Pure.
#pragma once

#include <string>

#include "millrace/profiler/kernel_profile.h"

namespace millrace::cli {

// Ends with a newline. Rows below a two-hundredth of the step are folded into one.
std::string kernel_table(const KernelProfile& profile);

}  // namespace millrace::cli
