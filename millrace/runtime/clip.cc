#include "millrace/runtime/clip.h"

#include <array>

#include "millrace/base/error.h"

namespace millrace {
namespace {

template <typename T>
double squares(const T* data, int64_t count) {
  // Several sums at once: one would make every addition wait for the one before.
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(data[i + lane]);
      sums[static_cast<std::size_t>(lane)] += x * x;
    }
  }
  double total = 0;
  for (; i < count; ++i) {
    const auto x = static_cast<double>(data[i]);
    total += x * x;
  }
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

double squared_norm(const at::Tensor& flat) {
  MILLRACE_CHECK(flat.is_contiguous(), "a flat buffer is contiguous");
  return flat.scalar_type() == at::kDouble ? squares(flat.data_ptr<double>(), flat.numel())
                                           : squares(flat.data_ptr<float>(), flat.numel());
}

double clip_factor(double norm, double most) { return norm > most ? most / norm : 1.0; }

}  // namespace millrace
