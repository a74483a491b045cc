#include "millrace/planner/device_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"
#include "millrace/planner/internal/linear_solve.h"

namespace millrace {
namespace {

// Observations that say a kind's factor is 1.
constexpr double kFactorRidge = 3;

std::array<double, DeviceFit::kTerms> terms_of(const LayerProfile& layer, int64_t samples,
                                               LayerPass pass, double base_s) {
  return {base_s, pass_flops(layer, samples, pass), pass_bytes(layer, samples), 1.0};
}

}  // namespace

void DeviceFit::observe(const LayerProfile& layer, int64_t samples, LayerPass pass, double base_s,
                        double measured_s) {
  if (!(base_s > 0 && measured_s > 0) || !std::isfinite(base_s) || !std::isfinite(measured_s)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer {}: expected times above 0, found {} s on the first device and "
                            "{} s on this one; leave out what takes no time",
                            layer.name, base_s, measured_s));
  }
  observations_.push_back({layer.kind, terms_of(layer, samples, pass, base_s), measured_s});
  fit();
}

double DeviceFit::by_terms(const std::array<double, kTerms>& terms) const {
  double seconds = 0;
  for (std::size_t k = 0; k < kTerms; ++k) {
    seconds += coefficients_[k] * terms[k];
  }
  return seconds;
}

void DeviceFit::fit() {
  std::vector<std::vector<double>> rows;
  for (const Observation& observation : observations_) {
    std::vector<double> row;
    for (const double term : observation.terms) {
      row.push_back(term / observation.measured_s);
    }
    rows.push_back(std::move(row));
  }
  const std::vector<double> found =
      internal::non_negative_least_squares(rows, std::vector<double>(rows.size(), 1.0));
  std::copy(found.begin(), found.end(), coefficients_.begin());
  std::map<std::string, double> sums;
  std::map<std::string, double> counts;
  for (const Observation& observation : observations_) {
    const double expected = by_terms(observation.terms);
    if (expected > 0) {
      sums[observation.kind] += std::log(observation.measured_s / expected);
      counts[observation.kind] += 1;
    }
  }
  factors_.clear();
  for (const auto& [kind, sum] : sums) {
    factors_[kind] = std::exp(sum / (counts[kind] + kFactorRidge));
  }
}

double DeviceFit::predict(const LayerProfile& layer, int64_t samples, LayerPass pass,
                          double base_s) const {
  if (base_s <= 0) {
    return 0;
  }
  const auto factor = factors_.find(layer.kind);
  return by_terms(terms_of(layer, samples, pass, base_s)) *
         (factor == factors_.end() ? 1.0 : factor->second);
}

Profile with_fitted_latencies(Profile profile, const DeviceFit& fit) {
  for (LayerProfile& layer : profile.layers) {
    const auto refine = [&](const char* field, LayerPass pass, double& seconds) {
      if (std::find(layer.estimated.begin(), layer.estimated.end(), field) !=
          layer.estimated.end()) {
        seconds = fit.predict(layer, profile.samples_per_microbatch, pass, seconds);
      }
    };
    refine("forward_s", LayerPass::kForward, layer.forward_s);
    refine("input_gradient_s", LayerPass::kInputGradient, layer.input_gradient_s);
    refine("weight_gradient_s", LayerPass::kWeightGradient, layer.weight_gradient_s);
  }
  return profile;
}

double fit_seconds_per_flop(std::vector<FlopsTime> observed) {
  observed.erase(
      std::remove_if(observed.begin(), observed.end(),
                     [](const FlopsTime& one) { return !(one.flops > 0 && one.seconds > 0); }),
      observed.end());
  if (observed.empty()) {
    return 0;
  }
  // sum |c f / t - 1| = sum (f / t) |c - t / f|: the median of t / f, each weighing f / t.
  std::sort(observed.begin(), observed.end(), [](const FlopsTime& a, const FlopsTime& b) {
    return a.seconds * b.flops < b.seconds * a.flops;
  });
  double total = 0;
  for (const FlopsTime& one : observed) {
    total += one.flops / one.seconds;
  }
  double seen = 0;
  for (const FlopsTime& one : observed) {
    seen += one.flops / one.seconds;
    if (seen >= total / 2) {
      return one.seconds / one.flops;
    }
  }
  return observed.back().seconds / observed.back().flops;
}

}  // namespace millrace
