// The everyday native layers. Each is checked against libtorch's autograd in tests/model.
#pragma once

#include "millrace/model/layer.h"

namespace millrace {

// y = x W^T + b. Input [B, in]; weight [out, in], bias [out]; initial bound 1/sqrt(in).
LayerPtr linear(std::string name, int64_t in, int64_t out, bool bias = true);
// y = max(x, 0). Any shape.
LayerPtr relu(std::string name);
LayerPtr tanh(std::string name);
// [B, ...] -> [B, product].
LayerPtr flatten(std::string name);
// Input [B, in, H, W]; weight [out, in, k, k], bias [out]; stride 1 unless given; zero padding.
LayerPtr conv2d(std::string name, int64_t in, int64_t out, int64_t kernel, int64_t padding = 0,
                int64_t stride = 1);
// Non-overlapping windows of `size` x `size`; a remainder at the border is dropped.
LayerPtr max_pool2d(std::string name, int64_t size);

}  // namespace millrace
