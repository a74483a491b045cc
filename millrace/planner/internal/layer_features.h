// What predictors of a layer's time know of it: numbers counted from a LayerProfile's shapes and
// bytes, no time among them. For planner/latency_model.h and planner/device_fit.h. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/core/profile.h"
#include "millrace/planner/latency_model.h"

namespace millrace::internal {

// Logarithms of FLOPs, input, output, parameters, what is kept for the backward, FLOPs a byte,
// samples, places, features and channels on both sides, kernel, stride; and whether widths are
// multiples of 8. Always so many, in this order.
constexpr std::size_t kLayerFeatures = 17;
constexpr std::size_t kLogFlops = 0;
constexpr std::size_t kLogIntensity = 5;  // FLOPs a byte
std::vector<double> layer_features(const LayerProfile& layer, int64_t samples);

}  // namespace millrace::internal
