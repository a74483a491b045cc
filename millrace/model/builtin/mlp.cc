// Linear layers with a ReLU between each two. Every linear and every ReLU is a layer of its own, so
// that a planner may cut anywhere.
#include <fmt/format.h>

#include "millrace/model/internal/classification.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {

Model mlp(ModelRequest& request) {
  const int64_t depth = request.options.count("depth", 1, 8);
  const int64_t width = request.options.count("width", 1, 256);

  Model model;
  model.name = "mlp";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = internal::classification_loss(request.options);
  model.append(flatten("flatten"));
  int64_t in = request.input.sample_elements();
  for (int64_t i = 1; i <= depth; ++i) {
    const int64_t out = i == depth ? request.num_classes : width;
    model.append(linear(fmt::format("linear{}", i), in, out));
    if (i < depth) {
      model.append(relu(fmt::format("relu{}", i)));
    }
    in = out;
  }
  return model;
}

}  // namespace millrace
