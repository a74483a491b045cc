// Small layers of all native kinds, drawn for `millrace bench latency` to learn from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/profiler/measure_layer.h"

namespace millrace::cli {

struct DrawnLayer {
  std::string name;  // says what it is: "conv2d in=16 out=32 ..."; no two are equal
  std::function<LayerAlone()> make;
};

// `count` distinct layers, more of those kinds that depend on more numbers; the same ones for the
// same count and seed. Each takes some 10 microseconds to some milliseconds a pass.
std::vector<DrawnLayer> draw_layers(int count, uint64_t seed);

// The numbers of samples that they are drawn with.
const std::vector<int64_t>& drawn_samples();

}  // namespace millrace::cli
