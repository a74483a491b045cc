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
                int64_t stride = 1, bool bias = true);
// Normalizes each channel of [B, channels, H, W] over samples and places; weight [channels] from 1,
// bias [channels] from 0; eps 1e-5. Training uses the microbatch's own mean and biased variance and
// moves the buffers running_mean (from 0) and running_var (unbiased, from 1) by a tenth towards
// them, once a forward; evaluation uses the buffers. Ioffe and Szegedy, "Batch Normalization",
// ICML 2015. Training on a microbatch with one value a channel is Error(kInvalidArgument).
LayerPtr batch_norm2d(std::string name, int64_t channels);
// Normalizes over the last dimension of [B, ..., width]; weight [width] from 1, bias [width] from
// 0; eps 1e-5. Ba et al., "Layer Normalization", 2016.
LayerPtr layer_norm(std::string name, int64_t width);
// Zeroes each element with probability `p` in [0, 1) and divides the others by 1 - p; evaluation
// hands its input on. Which ones follows from (seed, step, layer name, sample's place in the
// minibatch, element), so nothing is stashed: the backward draws again.
LayerPtr dropout(std::string name, double p);
// Rows of a table: input int64 [B, ...] with values in [0, rows), output [B, ..., width] of
// `dtype`; weight [rows, width], uniform with deviation 1. Its gradient adds in the order of the
// input.
LayerPtr embedding(std::string name, int64_t rows, int64_t width,
                   at::ScalarType dtype = at::kFloat);
// [B, C, H, W] -> [B, C]: the mean of each channel's image.
LayerPtr global_average_pool(std::string name);
// The sum of two or more inputs of one shape: where a skip edge ends.
LayerPtr add(std::string name);
// Non-overlapping windows of `size` x `size`; a remainder at the border is dropped.
LayerPtr max_pool2d(std::string name, int64_t size);

}  // namespace millrace
