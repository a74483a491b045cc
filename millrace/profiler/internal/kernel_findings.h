// The rules that turn a kernel profile's rows and chains into findings, ranked by what mending them
// would save at most. Pure functions. Source: ProfileDNN's classes of what is lost (see
// kernel_profile.h); the rules are our reconstruction:
//
// - reorder: all time of copies and conversions; in oneDNN's forward convolutions, what they take
//   longer than on tensors in oneDNN's own layout.
// - pointwise: all passes of a chain but the longest.
// - fallback: convolutions that oneDNN does not do, and matrix products on operands that are
//   contiguous in neither direction: what they take longer than at the profile's best FLOPs a
//   second.
// - in-step: what calls take longer than alone, from 1.25 times on; not of calls below 10 us or of
//   those that call others, which the recording itself lengthens.
// - threads: the share of cores that ranks x threads leave idle, or of threads beyond the cores.
// - loading: all of it.
//
// Below a thousandth of the step nothing is said.
#pragma once

#include <vector>

#include "millrace/profiler/internal/operator_call.h"
#include "millrace/profiler/kernel_profile.h"

namespace millrace::internal {

// `calls` are the rows' first calls, in the order of profile.rows; empty ones for other rows.
std::vector<KernelFinding> find_what_to_mend(const KernelProfile& profile,
                                             const std::vector<OperatorCall>& calls);

}  // namespace millrace::internal
