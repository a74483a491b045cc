#include "millrace/planner/internal/linear_solve.h"

#include <gtest/gtest.h>

namespace millrace::internal {
namespace {

SquareMatrix example() {
  SquareMatrix matrix(3);
  matrix.values = {4, 2, 1, 2, 5, 3, 1, 3, 6};
  return matrix;
}

TEST(LinearSolve, SolvesWhatItWasBuiltFrom) {
  const SquareMatrix factor = cholesky(example());
  // The matrix times (1, -2, 3).
  const std::vector<double> x = solve(factor, {3, 1, 13});
  EXPECT_NEAR(x[0], 1, 1e-12);
  EXPECT_NEAR(x[1], -2, 1e-12);
  EXPECT_NEAR(x[2], 3, 1e-12);
}

TEST(LinearSolve, TheInversesDiagonalIsThatOfTheSolvedUnitVectors) {
  const SquareMatrix factor = cholesky(example());
  const std::vector<double> diagonal = inverse_diagonal(factor);
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<double> unit(3, 0.0);
    unit[i] = 1;
    EXPECT_NEAR(diagonal[i], solve(factor, unit)[i], 1e-12);
  }
}

TEST(LinearSolve, NonNegativeFindsWhatIsThereAndCutsWhatWouldBeNegative) {
  const std::vector<std::vector<double>> rows = {{1, 0}, {0, 1}, {1, 1}};
  const std::vector<double> exact = non_negative_least_squares(rows, {2, 3, 5});
  EXPECT_NEAR(exact[0], 2, 1e-9);
  EXPECT_NEAR(exact[1], 3, 1e-9);
  // Unrestricted it would be (2, -1); with the second at 0 the first is (2 + 1) / 2.
  const std::vector<double> cut = non_negative_least_squares(rows, {2, -1, 1});
  EXPECT_NEAR(cut[0], 1.5, 1e-9);
  EXPECT_EQ(cut[1], 0);
}

}  // namespace
}  // namespace millrace::internal
