#include "millrace/model/internal/loss_checks.h"

#include <fmt/format.h>

namespace millrace::internal {
namespace {

// The contract of a batch: what check() sees of a tensor, or nothing of a tensor without samples.
TensorSpec spec_of(const at::Tensor& batch) {
  MILLRACE_CHECK(batch.defined() && batch.dim() >= 1);
  return {batch.sizes().slice(1).vec(), batch.scalar_type()};
}

}  // namespace

void refuse(const Loss& loss, const std::string& expected, const TensorSpec& output,
            const TensorSpec& target) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the {} loss expects {}; found output {} and target {}", loss.kind(),
                          expected, to_string(output), to_string(target)));
}

void check_batch_of(const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
  const TensorSpec output_spec = spec_of(output);
  const TensorSpec target_spec = spec_of(target);
  loss.check(output_spec, target_spec);
  if (output.size(0) != target.size(0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the {} loss expects as many targets as outputs; found {} outputs and "
                            "{} targets",
                            loss.kind(), output.size(0), target.size(0)));
  }
}

bool is_float(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }

}  // namespace millrace::internal
