#include "millrace/planner/internal/latency_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/layer_features.h"
#include "millrace/planner/internal/linear_solve.h"

namespace millrace::internal {
namespace {

constexpr double kRidge = 1.0;  // observations that say a slope is 0
constexpr std::size_t kLeastForProcess = 8;

// Deviations below this are rounding: the feature is the same for all. Features that hardly differ
// are scaled by no less than kLeastScale: what lies far off would be scaled out of all proportion.
constexpr double kSame = 1e-9;
constexpr double kLeastScale = 0.25;
constexpr double kFarthest = 6;  // scaled deviations are cut here

std::vector<double> scaled(const LatencyCurve& curve, const std::vector<double>& features) {
  std::vector<double> point(features.size());
  for (std::size_t f = 0; f < features.size(); ++f) {
    point[f] = curve.scales[f] > 0 ? std::clamp((features[f] - curve.means[f]) / curve.scales[f],
                                                -kFarthest, kFarthest)
                                   : 0;
  }
  return point;
}

double line(const LatencyCurve& curve, const std::vector<double>& point) {
  double value = curve.intercept;
  for (std::size_t f = 0; f < point.size(); ++f) {
    value += curve.slopes[f] * point[f];
  }
  return value;
}

// FLOPs, bytes and one.
std::vector<double> base_terms(const std::vector<double>& features) {
  const double flops = std::exp(features[kLogFlops]);
  return {flops, flops / std::exp(features[kLogIntensity]), 1.0};
}

double base_logarithm(const LatencyCurve& curve, const std::vector<double>& features) {
  const std::vector<double> terms = base_terms(features);
  double seconds = 0;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    seconds += curve.base[k] * terms[k];
  }
  return std::log(seconds);
}

void fit_base(LatencyCurve& curve, const std::vector<std::vector<double>>& features,
              const std::vector<double>& logarithms) {
  std::vector<std::vector<double>> rows;
  for (std::size_t r = 0; r < features.size(); ++r) {
    std::vector<double> row = base_terms(features[r]);
    for (double& term : row) {
      term /= std::exp(logarithms[r]);
    }
    rows.push_back(std::move(row));
  }
  const std::vector<double> found =
      non_negative_least_squares(rows, std::vector<double>(rows.size(), 1.0));
  std::copy(found.begin(), found.end(), curve.base.begin());
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t f = 0; f < a.size(); ++f) {
    sum += (a[f] - b[f]) * (a[f] - b[f]);
  }
  return sum;
}

void set_scales(LatencyCurve& curve, const std::vector<std::vector<double>>& features) {
  const std::size_t count = features.front().size();
  const auto num = static_cast<double>(features.size());
  curve.means.assign(count, 0.0);
  curve.scales.assign(count, 0.0);
  for (std::size_t f = 0; f < count; ++f) {
    for (const std::vector<double>& row : features) {
      curve.means[f] += row[f] / num;
    }
    double variance = 0;
    for (const std::vector<double>& row : features) {
      variance += (row[f] - curve.means[f]) * (row[f] - curve.means[f]) / num;
    }
    curve.scales[f] = std::sqrt(variance) > kSame ? std::max(std::sqrt(variance), kLeastScale) : 0;
  }
}

void fit_line(LatencyCurve& curve, const std::vector<std::vector<double>>& points,
              const std::vector<double>& targets) {
  const std::size_t count = curve.means.size();
  curve.intercept = 0;
  for (const double target : targets) {
    curve.intercept += target / static_cast<double>(targets.size());
  }
  SquareMatrix normal(count);
  std::vector<double> right(count, 0.0);
  for (std::size_t r = 0; r < points.size(); ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        normal.at(i, j) += points[r][i] * points[r][j];
      }
      right[i] += points[r][i] * (targets[r] - curve.intercept);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    normal.at(i, i) += kRidge;
  }
  curve.slopes = solve(cholesky(std::move(normal)), std::move(right));
}

double likeness(double squared_distance, double length, double power) {
  return std::exp(-std::pow(squared_distance / (length * length), power / 2));
}

// The process over the line's residuals: weights, and how far each observation is from what the
// others say of it, in the mean.
double fit_process(const SquareMatrix& distances, const std::vector<double>& residuals,
                   double length, double power, double noise, std::vector<double>& weights) {
  SquareMatrix kernel(distances.size);
  for (std::size_t i = 0; i < distances.size; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      kernel.at(i, j) = likeness(distances.at(i, j), length, power);
    }
    kernel.at(i, i) = 1 + noise;
  }
  const SquareMatrix factor = cholesky(std::move(kernel));
  weights = solve(factor, residuals);
  const std::vector<double> diagonal = inverse_diagonal(factor);
  double error = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    error += std::abs(weights[i] / diagonal[i]);
  }
  return error / static_cast<double>(weights.size());
}

}  // namespace

LatencyCurve fit_curve(const std::vector<std::vector<double>>& features,
                       const std::vector<double>& logarithms, bool smooth) {
  MILLRACE_CHECK(!features.empty() && features.size() == logarithms.size());
  LatencyCurve curve;
  set_scales(curve, features);
  std::vector<std::vector<double>> points;
  points.reserve(features.size());
  for (const std::vector<double>& row : features) {
    points.push_back(scaled(curve, row));
  }
  fit_base(curve, features, logarithms);
  std::vector<double> targets;
  for (std::size_t r = 0; r < features.size(); ++r) {
    targets.push_back(logarithms[r] - base_logarithm(curve, features[r]));
  }
  fit_line(curve, points, targets);
  if (!smooth || points.size() < kLeastForProcess) {
    return curve;
  }
  std::vector<double> residuals;
  SquareMatrix distances(points.size());
  double least_error = 0;  // of the line alone
  for (std::size_t i = 0; i < points.size(); ++i) {
    residuals.push_back(targets[i] - line(curve, points[i]));
    least_error += std::abs(residuals[i]) / static_cast<double>(points.size());
    for (std::size_t j = 0; j < i; ++j) {
      distances.at(i, j) = squared_distance(points[i], points[j]);
    }
  }
  for (const double power : {1.0, 2.0}) {
    for (const double length : {1.5, 3.0, 6.0, 12.0}) {
      for (const double noise : {0.001, 0.01, 0.1, 1.0}) {
        std::vector<double> weights;
        const double error = fit_process(distances, residuals, length, power, noise, weights);
        if (error < least_error) {
          least_error = error;
          curve.length = length;
          curve.power = power;
          curve.weights = std::move(weights);
        }
      }
    }
  }
  if (!curve.weights.empty()) {
    curve.points = std::move(points);
  }
  return curve;
}

double evaluate(const LatencyCurve& curve, const std::vector<double>& features) {
  const std::vector<double> point = scaled(curve, features);
  double value = base_logarithm(curve, features) + line(curve, point);
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    value += curve.weights[i] *
             likeness(squared_distance(point, curve.points[i]), curve.length, curve.power);
  }
  return value;
}

}  // namespace millrace::internal
