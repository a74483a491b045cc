// A decoder-only transformer after Radford et al., "Language Models are Unsupervised Multitask
// Learners", 2019 (GPT-2), section 2.3: learned positions, norms before each half of a block and
// after the last, GELU. Left out: its scaling of initial weights by depth, which so few blocks do
// not need. Every skip edge is an edge of the layer graph.
#include <fmt/format.h>

#include "millrace/model/internal/tokens.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {
namespace {

constexpr double kDeviation = 0.02;  // of both tables, as in the paper's code

// Both halves of a block end in a sum with what they began with.
int close_half(Model& model, const std::string& where, const std::string& number, int from, int x,
               double p) {
  x = internal::append_dropout(model, where + "drop" + number, p, x);
  return model.append(add(where + "add" + number), {x, from});
}

int block(Model& model, const std::string& where, int from, int64_t width, int64_t heads,
          double p) {
  int x = model.append(layer_norm(where + "norm1", width), {from});
  x = model.append(linear(where + "qkv", width, 3 * width), {x});
  x = model.append(attention(where + "attention", width, heads), {x});
  x = model.append(linear(where + "out", width, width), {x});
  from = close_half(model, where, "1", from, x, p);
  x = model.append(layer_norm(where + "norm2", width), {from});
  x = model.append(linear(where + "fc1", width, 4 * width), {x});
  x = model.append(gelu(where + "gelu"), {x});
  x = model.append(linear(where + "fc2", 4 * width, width), {x});
  return close_half(model, where, "2", from, x, p);
}

}  // namespace

Model gpt(ModelRequest& request) {
  const int64_t layers = request.options.count("layers", 1, 4);
  const int64_t width = request.options.count("width", 1, 192);
  const int64_t heads = request.options.count("heads", 1, 6);
  const int64_t length = request.options.count("length", 1, 128);
  const double p = internal::dropout_option(request.options, 0.1);
  const bool tied = request.options.boolean("tied", false);
  if (width % heads != 0) {
    throw request.options.error(
        "heads", fmt::format("width = {} is not a multiple of heads = {}", width, heads));
  }

  Model model = internal::token_model("gpt", request);
  if (model.input.sample_shape[0] > length) {
    throw request.options.error(
        "length", fmt::format("the data's samples have {} positions, the model learns {}; raise "
                              "model.length or lower data.length",
                              model.input.sample_shape[0], length));
  }
  model.append(embedding("tokens", request.num_classes, width, request.dtype, kDeviation));
  int x = model.append(position_embedding("positions", length, width, kDeviation));
  x = internal::append_dropout(model, "drop", p, x);
  for (int64_t i = 1; i <= layers; ++i) {
    x = block(model, fmt::format("b{}.", i), x, width, heads, p);
  }
  model.append(layer_norm("norm", width), {x});
  model.append(tied ? tied_linear("projection", "tokens", width, request.num_classes)
                    : linear("projection", width, request.num_classes, /*bias=*/false));
  return model;
}

}  // namespace millrace
