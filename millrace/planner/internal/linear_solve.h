// Small dense linear algebra for the predictors of layer times. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::internal {

// A square matrix, row by row.
struct SquareMatrix {
  explicit SquareMatrix(std::size_t rows) : size(rows), values(rows * rows, 0.0) {}
  double& at(std::size_t row, std::size_t column) { return values[row * size + column]; }
  double at(std::size_t row, std::size_t column) const { return values[row * size + column]; }
  std::size_t size;
  std::vector<double> values;
};

// The lower factor L of a symmetric positive definite matrix = L L^T, of which the lower half is
// read. A pivot that rounding made less than a millionth of a millionth of the largest becomes
// that.
SquareMatrix cholesky(SquareMatrix matrix);

// x with L L^T x = right.
std::vector<double> solve(const SquareMatrix& factor, std::vector<double> right);

// The diagonal of (L L^T)^-1.
std::vector<double> inverse_diagonal(const SquareMatrix& factor);

// x >= 0 that makes the squared length of rows x - right least, of at most 8 unknowns: tries which
// of them are 0. Rows are equally long, at least one.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& right);

}  // namespace millrace::internal
