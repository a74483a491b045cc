// DeviceFit: a device's times predicted from the times of another device, refined with every
// layer that is measured there. What `millrace profile --predict MODEL --observe N` and a run on
// machines of several speeds use. Not for two threads at once.
//
// After AccEPT (see planner/latency_model.h), whose predictor goes on learning on the device; the
// form is ours: t = x0 base + x1 FLOPs + x2 bytes + x3, no x below 0, least in relative error, then
// a factor for each kind of layer, drawn towards 1 where few were seen.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/core/profile.h"
#include "millrace/planner/latency_model.h"

namespace millrace {

class DeviceFit {
 public:
  static constexpr std::size_t kTerms = 4;

  // One pass of a layer, taken `base_s` on the first device, or predicted to, and `measured_s`
  // here, and fits anew. Both above 0, else Error(kInvalidArgument).
  void observe(const LayerProfile& layer, int64_t samples, LayerPass pass, double base_s,
               double measured_s);

  // Never negative; `base_s` itself before anything was observed, 0 for a pass that takes no time
  // on the first device.
  double predict(const LayerProfile& layer, int64_t samples, LayerPass pass, double base_s) const;

  std::size_t num_observations() const { return observations_.size(); }
  // Of base, FLOPs, bytes and one.
  const std::array<double, kTerms>& coefficients() const { return coefficients_; }

 private:
  struct Observation {
    std::string kind;
    std::array<double, kTerms> terms;
    double measured_s;
  };

  double by_terms(const std::array<double, kTerms>& terms) const;
  void fit();

  std::vector<Observation> observations_;
  std::array<double, kTerms> coefficients_ = {1, 0, 0, 0};
  std::map<std::string, double> factors_;
};

// The profile with all times that it calls estimated, but for updates, as the device takes them.
Profile with_fitted_latencies(Profile profile, const DeviceFit& fit);

// What predicts best from FLOPs alone: c of t = c FLOPs with the least mean relative error, a
// weighted median. For comparison. Nothing observed, or nothing above 0: 0.
struct FlopsTime {
  double flops = 0;
  double seconds = 0;
};
double fit_seconds_per_flop(std::vector<FlopsTime> observed);

}  // namespace millrace
