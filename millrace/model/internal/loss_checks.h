// What losses check of their output and target. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "millrace/model/loss.h"

namespace millrace::internal {

[[noreturn]] void refuse(const Loss& loss, const std::string& expected, const TensorSpec& output,
                         const TensorSpec& target);

// Checks shapes of one batch, its number of samples included.
void check_batch_of(const Loss& loss, const at::Tensor& output, const at::Tensor& target);

bool is_float(at::ScalarType dtype);

}  // namespace millrace::internal
