// LatencyModel: the time of a layer predicted from what it is. Learned from profiles whose layers
// say their kind and shapes; gives profiles whose layers were never measured to every planner. Made
// by `millrace bench latency`, used by `millrace profile --predict`. A plain value; const access
// from several threads is safe.
//
// After AccEPT: An Acceleration Scheme for Speeding Up Edge Pipeline-Parallel Training, Chen et al.
// (arXiv 2311.05827): a learned predictor over layer descriptors, refined for a device while it
// runs (planner/device_fit.h), feeds the partition. The form of the predictor is ours: for each
// kind of layer a time for a FLOP, a byte and a pass; a line in the logarithms of what is known of
// the layer; and a Gaussian process on what these leave.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/profile.h"

namespace millrace {

enum class LayerPass { kForward, kInputGradient, kWeightGradient };
inline constexpr std::array kLayerPasses = {LayerPass::kForward, LayerPass::kInputGradient,
                                            LayerPass::kWeightGradient};
double seconds_of(const LayerProfile& layer, LayerPass pass);
double spread_of(const LayerProfile& layer, LayerPass pass);

// Multiplications and additions of one pass over the profile's microbatch: the profile's own where
// it has them; else two a weight and place of the output for a layer whose weights are a matrix or
// a kernel, and one an element of the larger of input and output for all others.
double pass_flops(const LayerProfile& layer, int64_t samples, LayerPass pass);

// Bytes of input, output and parameters that a pass moves at least once.
double pass_bytes(const LayerProfile& layer, int64_t samples);

// One regression: of a pass of the layers of one kind, or of all kinds together.
struct LatencyCurve {
  // Seconds a FLOP, a byte and a pass, none below 0: what lines and points start from.
  std::array<double, 3> base{};
  std::vector<double> means;   // of each feature
  std::vector<double> scales;  // what a deviation is divided by; 0: the feature never differed
  double intercept = 0;        // of the logarithm of seconds over the base
  std::vector<double> slopes;  // a scaled feature
  // What the line leaves: a sum over learned layers of weight x exp(-(distance / length)^power).
  // Without points it is the line alone.
  double length = 1;
  double power = 2;                         // 1 or 2: rough or smooth
  std::vector<std::vector<double>> points;  // scaled features
  std::vector<double> weights;
  bool operator==(const LatencyCurve&) const = default;
};

struct LatencyModel {
  std::string machine;  // as the profiles': where the times are from
  std::string dtype = "float32";
  int64_t num_layers = 0;  // learned from
  // By kind, one curve a pass in the order of LayerPass; "" stands for kinds that are not there. A
  // curve without means has nothing to say: the pass takes no time.
  std::map<std::string, std::array<LatencyCurve, kLayerPasses.size()>> kinds;
  double update_s = 0;           // of an update, whatever its size
  double update_s_per_byte = 0;  // of parameters
  bool operator==(const LatencyModel&) const = default;
};

// Learns from all layers that say their kind; times marked as estimated are not learned from.
// Throws Error(kInvalidArgument) for profiles of several machines or dtypes, and where fewer than
// 20 layers say their kind.
LatencyModel learn_latencies(const std::vector<Profile>& profiles);

// Seconds of a pass over `samples` samples; never negative. Of a kind that was not learned it is
// the curve of all kinds together: within a factor of some, not more.
double predict_latency(const LatencyModel& model, const LayerProfile& layer, int64_t samples,
                       LayerPass pass);

// The profile with all four times of each layer predicted and named in `estimated`. `unknown`,
// when not null, receives the kinds that the model does not know. Throws Error(kInvalidArgument)
// when a layer does not say its kind, and for another dtype than the model's.
Profile with_predicted_latencies(Profile profile, const LatencyModel& model,
                                 std::vector<std::string>* unknown = nullptr);

// JSON form, see docs/formats.md. Reading throws Error(kBadFile/kInvalidArgument) with file and
// key.
LatencyModel latency_model_from(const Document& document);
Value to_value(const LatencyModel& model);

}  // namespace millrace
