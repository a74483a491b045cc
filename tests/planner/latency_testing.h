// Layers whose times are a known function of what they are, for tests of predictors.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "millrace/base/random.h"
#include "millrace/core/profile.h"

namespace millrace::testing {

inline constexpr int64_t kLatencySamples = 16;

// 2 ns per 100 FLOPs, 0.5 ns a byte, 5 us a pass.
inline double known_seconds(double flops, double bytes) {
  return 2e-11 * flops + 5e-10 * bytes + 5e-6;
}

inline LayerProfile known_linear(int64_t in, int64_t out) {
  LayerProfile layer;
  layer.name = fmt::format("linear {} {}", in, out);
  layer.kind = "linear";
  layer.input_shape = {in};
  layer.output_shape = {out};
  layer.weight_shape = {out, in};
  layer.parameter_bytes = 4 * in * out;
  layer.output_bytes = 4 * kLatencySamples * out;
  layer.forward_flops = 2.0 * static_cast<double>(kLatencySamples * in * out);
  layer.input_gradient_flops = layer.forward_flops;
  layer.weight_gradient_flops = layer.forward_flops;
  const double bytes = static_cast<double>(4 * kLatencySamples * (in + out) + 4 * in * out);
  layer.forward_s = known_seconds(layer.forward_flops, bytes);
  layer.input_gradient_s = 1.5 * layer.forward_s;
  layer.weight_gradient_s = 2 * layer.forward_s;
  layer.update_s = 1e-6 + 1e-10 * static_cast<double>(layer.parameter_bytes);
  return layer;
}

inline LayerProfile known_relu(int64_t width) {
  LayerProfile layer;
  layer.name = fmt::format("relu {}", width);
  layer.kind = "relu";
  layer.input_shape = {width};
  layer.output_shape = {width};
  layer.output_bytes = 4 * kLatencySamples * width;
  layer.forward_flops = static_cast<double>(kLatencySamples * width);
  layer.forward_s = known_seconds(0, static_cast<double>(8 * kLatencySamples * width));
  layer.input_gradient_s = layer.forward_s;
  return layer;
}

// `count` layers of each kind, all distinct, of sizes 64 to 2048; drawn by `seed`.
inline Profile known_layers(int count, uint64_t seed) {
  Profile profile;
  profile.model = "known";
  profile.samples_per_microbatch = kLatencySamples;
  const RandomKey key(seed);
  for (int i = 0; i < count; ++i) {
    const auto size = [&](uint64_t which) {
      const double exponent = 6 + 5 * key.with(which).uniform(static_cast<uint64_t>(i));
      return static_cast<int64_t>(std::exp2(exponent));
    };
    profile.layers.push_back(known_linear(size(0), size(1)));
    profile.layers.push_back(known_relu(100 * size(2)));
    profile.layers[profile.layers.size() - 2].name += fmt::format(" #{}", i);
    profile.layers.back().name += fmt::format(" #{}", i);
  }
  make_chain(profile);
  return profile;
}

}  // namespace millrace::testing
