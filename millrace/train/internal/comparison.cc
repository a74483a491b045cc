#include "millrace/train/internal/comparison.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::internal {

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || at::equal(a, b)) {
    return 0;
  }
  const double difference = a.sub(b).abs().max().item<double>();
  const double scale = b.abs().max().item<double>();
  const double relative = scale > 0 ? difference / scale : difference;
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

double relative_difference(double a, double b) {
  if (a == b) {
    return 0;
  }
  const double relative = b != 0 ? std::abs(a - b) / std::abs(b) : std::abs(a - b);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

void Comparison::note(int64_t step, int stage, const std::string& layer, const std::string& what,
                      double relative) {
  ++result_.compared;
  result_.max_relative_difference = std::max(result_.max_relative_difference, relative);
  std::optional<Difference>& first = result_.first_difference;
  if (relative > tolerance_ && (!first || step < first->step)) {
    first = Difference{step, stage, layer, what, relative};
  }
}

void Comparison::flat(int64_t step, int stage, const std::vector<ParameterSlot>& slots,
                      const std::string& before, const std::string& behind, const at::Tensor& run,
                      const at::Tensor& oracle) {
  for (const ParameterSlot& slot : slots) {
    std::string what = before;
    what += slot.parameter;
    what += behind;
    tensor(step, stage, slot.layer, what, run.narrow(0, slot.offset, slot.elements),
           oracle.narrow(0, slot.offset, slot.elements));
  }
}

}  // namespace millrace::internal
