#include "millrace/runtime/clip.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace {
namespace {

TEST(SquaredNorm, IsTheSumOfSquaresOfEveryElementWhateverTheLength) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (int64_t n = 0; n < 40; ++n) {
      const at::Tensor x = at::randn({n}, dtype);
      const double expected = x.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(squared_norm(x), expected, 1e-14 * (1 + expected)) << n;
    }
  }
}

// In float32 the sum of 10^8 ones would stop at 2^24, and the square of 1e30 overflows.
TEST(SquaredNorm, IsSummedInDouble) {
  EXPECT_EQ(squared_norm(at::full({3}, 1e30F, at::kFloat)),
            3.0 * static_cast<double>(1e30F) * static_cast<double>(1e30F));
}

TEST(ClipFactor, LimitsTheNormAndLeavesSmallerOnesAlone) {
  EXPECT_EQ(clip_factor(5, 1), 0.2);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1), 0);
  EXPECT_EQ(clip_factor(std::nan(""), 1), 1) << "a gradient that is no number stays one to be seen";
}

}  // namespace
}  // namespace millrace
