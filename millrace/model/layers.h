// The everyday native layers. Each is checked against libtorch's autograd in tests/model.
#pragma once

#include "millrace/model/layer.h"

namespace millrace {

// y = x W^T + b over the last dimension. Input [B, ..., in]; weight [out, in], bias [out]; initial
// bound 1/sqrt(in).
LayerPtr linear(std::string name, int64_t in, int64_t out, bool bias = true);
// y = x W^T over the last dimension, where W [out, in] is the parameter "weight" of the layer
// `owner` (tied weights): that of an embedding with `out` rows makes scores of its rows. Press and
// Wolf, "Using the Output Embedding to Improve Language Models", EACL 2017.
LayerPtr tied_linear(std::string name, std::string owner, int64_t in, int64_t out);
// y = max(x, 0). Any shape.
LayerPtr relu(std::string name);
LayerPtr tanh(std::string name);
// x times the normal distribution function of x. Hendrycks and Gimpel, "Gaussian Error Linear
// Units", 2016; the exact form.
LayerPtr gelu(std::string name);
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
// `dtype`; weight [rows, width], uniform with `deviation`. Its gradient adds in the order of the
// input.
LayerPtr embedding(std::string name, int64_t rows, int64_t width, at::ScalarType dtype = at::kFloat,
                   double deviation = 1);
// Adds to each position of [B, T, width], T at most `length`, what was learned for it; weight
// [length, width], uniform with `deviation`.
LayerPtr position_embedding(std::string name, int64_t length, int64_t width, double deviation = 1);
// Causal self-attention without weights: input [B, T, 3 width], a position's query, key and value
// one behind the other, each of `heads` equal parts; output [B, T, width]. A position attends to
// itself and those before it. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section
// 3.2.
LayerPtr attention(std::string name, int64_t width, int64_t heads);
// One layer of long short-term memory over a sequence, from a state of zeros: input [B, T, in],
// output [B, T, hidden], the state h after each position. Parameters weight_input [4 hidden, in],
// weight_hidden [4 hidden, hidden] and bias [4 hidden], gates in the order input, forget, cell,
// output; initial bound 1/sqrt(hidden). Hochreiter and Schmidhuber, Neural Computation 1997, with
// the forget gate of Gers et al., 2000.
LayerPtr lstm(std::string name, int64_t in, int64_t hidden);
// [B, C, H, W] -> [B, C]: the mean of each channel's image.
LayerPtr global_average_pool(std::string name);
// The sum of two or more inputs of one shape: where a skip edge ends.
LayerPtr add(std::string name);
// Non-overlapping windows of `size` x `size`; a remainder at the border is dropped.
LayerPtr max_pool2d(std::string name, int64_t size);

}  // namespace millrace
