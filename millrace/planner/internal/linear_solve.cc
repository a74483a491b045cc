#include "millrace/planner/internal/linear_solve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/base/error.h"

namespace millrace::internal {

SquareMatrix cholesky(SquareMatrix matrix) {
  const std::size_t size = matrix.size;
  double largest = 0;
  for (std::size_t i = 0; i < size; ++i) {
    largest = std::max(largest, matrix.at(i, i));
  }
  const double least = std::max(1e-12 * largest, std::numeric_limits<double>::min());
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = matrix.at(i, j);
      const double* left = &matrix.values[i * size];
      const double* right = &matrix.values[j * size];
      for (std::size_t k = 0; k < j; ++k) {
        sum -= left[k] * right[k];
      }
      matrix.at(i, j) = i == j ? std::sqrt(std::max(sum, least)) : sum / matrix.at(j, j);
    }
  }
  return matrix;
}

std::vector<double> solve(const SquareMatrix& factor, std::vector<double> right) {
  const std::size_t size = factor.size;
  MILLRACE_CHECK(right.size() == size);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      right[i] -= factor.at(i, k) * right[k];
    }
    right[i] /= factor.at(i, i);
  }
  for (std::size_t i = size; i-- > 0;) {
    for (std::size_t k = i + 1; k < size; ++k) {
      right[i] -= factor.at(k, i) * right[k];
    }
    right[i] /= factor.at(i, i);
  }
  return right;
}

std::vector<double> inverse_diagonal(const SquareMatrix& factor) {
  // Of L^-1, column by column: the diagonal of its transpose times itself.
  const std::size_t size = factor.size;
  std::vector<double> diagonal(size, 0.0);
  std::vector<double> column(size);
  for (std::size_t j = 0; j < size; ++j) {
    column[j] = 1 / factor.at(j, j);
    double sum = column[j] * column[j];
    for (std::size_t i = j + 1; i < size; ++i) {
      double value = 0;
      const double* row = &factor.values[i * size];
      for (std::size_t k = j; k < i; ++k) {
        value -= row[k] * column[k];
      }
      column[i] = value / factor.at(i, i);
      sum += column[i] * column[i];
    }
    diagonal[j] = sum;
  }
  return diagonal;
}

std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& right) {
  MILLRACE_CHECK(!rows.empty() && rows.size() == right.size());
  const std::size_t unknowns = rows.front().size();
  MILLRACE_CHECK(unknowns <= 8);
  std::vector<double> best(unknowns, 0.0);
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 0; chosen < 1U << unknowns; ++chosen) {
    std::vector<std::size_t> used;
    for (std::size_t k = 0; k < unknowns; ++k) {
      if ((chosen >> k & 1U) != 0) {
        used.push_back(k);
      }
    }
    std::vector<double> x(unknowns, 0.0);
    if (!used.empty()) {
      SquareMatrix normal(used.size());
      std::vector<double> target(used.size(), 0.0);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::size_t i = 0; i < used.size(); ++i) {
          for (std::size_t j = 0; j <= i; ++j) {
            normal.at(i, j) += rows[r][used[i]] * rows[r][used[j]];
          }
          target[i] += rows[r][used[i]] * right[r];
        }
      }
      // Columns of very different size would drown in each other's rounding.
      std::vector<double> scale(used.size());
      for (std::size_t i = 0; i < used.size(); ++i) {
        scale[i] = normal.at(i, i) > 0 ? 1 / std::sqrt(normal.at(i, i)) : 0;
      }
      for (std::size_t i = 0; i < used.size(); ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
          normal.at(i, j) *= scale[i] * scale[j];
        }
        normal.at(i, i) += 1e-12;
        target[i] *= scale[i];
      }
      const std::vector<double> found = solve(cholesky(std::move(normal)), target);
      for (std::size_t i = 0; i < used.size(); ++i) {
        x[used[i]] = found[i] * scale[i];
      }
    }
    if (std::any_of(x.begin(), x.end(), [](double value) { return value < 0; })) {
      continue;
    }
    double error = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      double difference = -right[r];
      for (std::size_t k = 0; k < unknowns; ++k) {
        difference += rows[r][k] * x[k];
      }
      error += difference * difference;
    }
    if (error < best_error) {
      best_error = error;
      best = x;
    }
  }
  return best;
}

}  // namespace millrace::internal
