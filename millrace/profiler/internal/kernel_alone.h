// A primitive alone: an operator called again on tensors of the same shapes, strides and types,
// with warm caches and nothing before, after or beside it. What the step's calls are compared with.
//
// Blocks for about the seconds it is given; one thread at a time. Source: ProfileDNN's stand-alone
// benchmarks (see kernel_profile.h).
#pragma once

#include <optional>

#include "millrace/profiler/internal/operator_call.h"

namespace millrace::internal {

// Median seconds of one call. Floats are drawn from [0.1, 1), integers and booleans are zero, so
// that indices exist. Nothing for a call that cannot be made again: of a layout without strides, or
// one that throws.
std::optional<double> time_alone(const OperatorCall& call, double budget_s);

// The same of oneDNN's forward convolution when images, filters and result are in its own layout,
// so that it has nothing to reorder. Nothing for other operators.
std::optional<double> time_blocked(const OperatorCall& call, double budget_s);

}  // namespace millrace::internal
