#include "millrace/planner/internal/layer_features.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"

namespace millrace {
namespace {

constexpr double kElementBytes = 4;  // of what has no shape

double elements(const std::vector<int64_t>& shape) {
  double product = 1;
  for (const int64_t extent : shape) {
    product *= static_cast<double>(extent);
  }
  return product;
}

// The shape of one sample taken apart: an image is channels first, all else features last.
struct Extents {
  double features = 1;  // or channels
  double places = 1;    // of one sample
  double side = 1;      // of an image; else places
};

Extents extents_of(const std::vector<int64_t>& shape) {
  Extents extents;
  if (shape.empty()) {
    return extents;
  }
  const bool image = shape.size() == 3;
  extents.features = std::max<double>(1, static_cast<double>(image ? shape.front() : shape.back()));
  extents.places = std::max(1.0, elements(shape) / extents.features);
  extents.side = image ? std::max<double>(1, static_cast<double>(shape.back())) : extents.places;
  return extents;
}

// Weights of a product, not scales and shifts.
bool multiplies(const LayerProfile& layer) {
  return layer.kind == "linear" || layer.kind == "conv2d" || layer.kind == "lstm";
}

double output_elements(const LayerProfile& layer, int64_t samples) {
  return layer.output_shape.empty() ? static_cast<double>(layer.output_bytes) / kElementBytes
                                    : static_cast<double>(samples) * elements(layer.output_shape);
}

double input_elements(const LayerProfile& layer, int64_t samples) {
  return layer.input_shape.empty() ? output_elements(layer, samples)
                                   : static_cast<double>(samples) * elements(layer.input_shape);
}

bool is_multiple(double value, int64_t of) { return static_cast<int64_t>(value) % of == 0; }

}  // namespace

double pass_flops(const LayerProfile& layer, int64_t samples, LayerPass pass) {
  const double own = pass == LayerPass::kForward         ? layer.forward_flops
                     : pass == LayerPass::kInputGradient ? layer.input_gradient_flops
                                                         : layer.weight_gradient_flops;
  if (own > 0) {
    return own;
  }
  if (multiplies(layer)) {
    const double places = static_cast<double>(samples) * extents_of(layer.output_shape).places;
    return 2 * places * static_cast<double>(layer.parameter_bytes) / kElementBytes;
  }
  return std::max({1.0, input_elements(layer, samples), output_elements(layer, samples)});
}

double pass_bytes(const LayerProfile& layer, int64_t samples) {
  return kElementBytes * (input_elements(layer, samples) + output_elements(layer, samples)) +
         static_cast<double>(layer.parameter_bytes);
}

namespace internal {

std::vector<double> layer_features(const LayerProfile& layer, int64_t samples) {
  const Extents in = extents_of(layer.input_shape);
  const Extents out = extents_of(layer.output_shape);
  const double flops = pass_flops(layer, samples, LayerPass::kForward);
  const double kernel =
      layer.weight_shape.size() == 4 ? static_cast<double>(layer.weight_shape[2]) : 1.0;
  std::vector<double> features = {
      std::log(flops),
      std::log(std::max(1.0, input_elements(layer, samples))),
      std::log(std::max(1.0, output_elements(layer, samples))),
      std::log1p(static_cast<double>(layer.parameter_bytes)),
      std::log1p(static_cast<double>(layer.stash_bytes)),
      std::log(flops / std::max(1.0, pass_bytes(layer, samples))),
      std::log(static_cast<double>(samples)),
      std::log(static_cast<double>(samples) * out.places),
      std::log(in.places),
      std::log(in.features),
      std::log(out.features),
      std::log(kernel),
      std::log(in.side / out.side),
      std::log(in.features * kernel * kernel),
      is_multiple(in.features, 8) ? 1.0 : 0.0,
      is_multiple(out.features, 8) ? 1.0 : 0.0,
      is_multiple(in.side, 8) ? 1.0 : 0.0,
  };
  MILLRACE_CHECK(features.size() == kLayerFeatures);
  return features;
}

}  // namespace internal
}  // namespace millrace
