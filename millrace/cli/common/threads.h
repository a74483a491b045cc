// The variables that keep BLAS and OpenMP from starting threads of their own in every rank.
#pragma once

namespace millrace::cli {

// Sets those that are not set; what the user set stays. Whether one was missing: libraries read
// them when they are loaded, so a program that has loaded them already must start itself again.
bool set_thread_variables();

}  // namespace millrace::cli
