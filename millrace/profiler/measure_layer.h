// Measures one layer on its own, with the profiler's very passes: for predictors, which learn from
// many small layers, and for devices that are made slower on purpose to check them.
//
// One call measures in a thread of its own; callers call from one thread.
#pragma once

#include <cstdint>

#include "millrace/core/profile.h"
#include "millrace/model/layer.h"

namespace millrace {

// What a slowed device does beside each forward and each half of a backward.
struct Throttle {
  double sleep = 0;  // sleeps so many times what it took
  double flops = 0;  // makes so many further multiplications and additions, scalar ones
  double bytes = 0;  // reads and writes so many further bytes, from and to memory
};

struct LayerAlone {
  LayerPtr layer;
  TensorSpec input;     // of one sample
  int num_inputs = 1;   // all of the same spec
  int64_t values = 0;   // of int64 inputs: drawn below this
  int64_t samples = 1;  // at once
};

// Medians and spreads over repeats for about `seconds` and at least 7 of them, one rank busy,
// float32; update_s is that of SGD with momentum. The layer is taken. Errors are those of the
// layer.
LayerProfile measure_layer(LayerAlone alone, double seconds, const Throttle& throttle = {});

}  // namespace millrace
