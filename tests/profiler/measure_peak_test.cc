#include "millrace/profiler/measure_peak.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Any processor that runs this multiplies faster than 0.1 and slower than 10^4 GFLOP/s a core: a
// factor lost in a unit would leave that range.
TEST(MeasurePeak, ProductsAreCountedInFlops) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double flops = measure_gemm_flops_per_s(2, dtype, 0.03);
    EXPECT_GT(flops, 1e8);
    EXPECT_LT(flops, 1e13);
  }
}

TEST(MeasurePeak, CopiesAreCountedInBytes) {
  for (const int ranks : {1, 2}) {
    const double bytes = measure_copy_bytes_per_s(ranks, 1 << 20, 0.02);
    EXPECT_GT(bytes, 1e8);
    EXPECT_LT(bytes, 1e13);
  }
}

TEST(MeasurePeak, ArraysAreBeyondCachesButBounded) {
  EXPECT_GE(array_beyond_caches(64), 64 << 20);
  EXPECT_LE(array_beyond_caches(1), 128 << 20);
}

}  // namespace
}  // namespace millrace
