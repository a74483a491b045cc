#include "millrace/cli/common/flops_text.h"

#include <gtest/gtest.h>

namespace millrace::cli {
namespace {

TEST(FlopsText, UnitsAreDecimal) {
  EXPECT_EQ(format_flops(0), "0 FLOP");
  EXPECT_EQ(format_flops(999), "999 FLOP");
  EXPECT_EQ(format_flops(1000), "1.00 kFLOP");
  EXPECT_EQ(format_flops(4.2e9), "4.20 GFLOP");
  EXPECT_EQ(format_flops(3e15), "3000.00 TFLOP");
}

TEST(FlopsText, SharesAreOfThePeakForThatTime) {
  EXPECT_EQ(format_share(5e9, 0.5, 20e9), "50%");
  EXPECT_EQ(format_share(1e6, 1, 1e9), "0.1%");
  EXPECT_EQ(format_share(0, 1, 1e9), "-");
  EXPECT_EQ(format_share(1e6, 0, 1e9), "-");
  EXPECT_EQ(format_share(1e6, 1, 0), "-") << "the peak was not measured";
}

TEST(FlopsText, SpreadsArePercentOfTheTime) {
  EXPECT_EQ(format_spread(10e-3, 0.5e-3), "10.0 ms +-5%");
  EXPECT_EQ(format_spread(0, 0), "-");
}

}  // namespace
}  // namespace millrace::cli
