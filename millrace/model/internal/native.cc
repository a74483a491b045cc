#include "millrace/model/internal/native.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace millrace::internal {

void refuse_input(const Layer& layer, const std::string& expected, const TensorSpec& found,
                  const std::string& advice) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("layer \"{}\" ({}) expects {}, found {}{}{}", layer.name(), layer.kind(),
                          expected, to_string(found), advice.empty() ? "" : "; ", advice));
}

const TensorSpec& one_input(const Layer& layer, const TensorSpecs& inputs) {
  if (inputs.size() != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer \"{}\" ({}) takes one input, found {}", layer.name(),
                            layer.kind(), inputs.size()));
  }
  return inputs[0];
}

void expect_float(const Layer& layer, const TensorSpec& input) {
  if (input.dtype != at::kFloat && input.dtype != at::kDouble) {
    refuse_input(layer, "float32 or float64", input);
  }
}

LayerPeers& peers(const Layer& layer, const LayerContext& context) {
  MILLRACE_CHECK(context.peers != nullptr, "no peers for a part of layer " + layer.name());
  return *context.peers;
}

std::string shape_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    if (text.size() > 1) {
      text += ", ";
    }
    text += std::to_string(size);
  }
  text += ']';
  return text;
}

at::Tensor shape_only(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = 0;
  return at::empty(sizes, tensor.options());
}

std::vector<int64_t> with_batch(int64_t batch, const at::Tensor& shape) {
  std::vector<int64_t> sizes = shape.sizes().vec();
  sizes[0] = batch;
  return sizes;
}

}  // namespace millrace::internal
