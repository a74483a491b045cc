// ResNet-18 after He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
// section 4.1, for small images as is common for them (28x28, 32x32): the stem is a 3x3 convolution
// with stride 1 and no max-pool follows. Four groups of two blocks; option `width` is the first
// group's number of channels, which doubles from group to group. Every skip edge is an edge of the
// layer graph.
#include <fmt/format.h>

#include "millrace/model/internal/classification.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {
namespace {

// Convolution without bias and batch norm; returns the norm's index.
int convolve(Model& model, const std::string& where, const std::string& what, int from, int64_t in,
             int64_t out, int64_t kernel, int64_t stride) {
  const int conv = model.append(
      conv2d(where + "conv" + what, in, out, kernel, kernel / 2, stride, /*bias=*/false), {from});
  return model.append(batch_norm2d(where + "bn" + what, out), {conv});
}

// Two convolutions and a way past them: the input itself, or its projection where the shape
// changes.
int block(Model& model, const std::string& where, int from, int64_t in, int64_t out,
          int64_t stride) {
  int x = convolve(model, where, "1", from, in, out, 3, stride);
  x = model.append(relu(where + "relu1"), {x});
  x = convolve(model, where, "2", x, out, out, 3, 1);
  const bool same = in == out && stride == 1;
  const int skip = same ? from : convolve(model, where, "_skip", from, in, out, 1, stride);
  x = model.append(add(where + "add"), {x, skip});
  return model.append(relu(where + "relu2"), {x});
}

}  // namespace

Model resnet18(ModelRequest& request) {
  int64_t channels = request.options.count("width", 1, 64);

  Model model;
  model.name = "resnet18";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = internal::classification_loss(request.options);

  // An input that is no image is conv1's to refuse; any channel count will do for its message.
  const std::vector<int64_t>& shape = request.input.sample_shape;
  int x = convolve(model, "", "1", kModelInput, shape.size() == 3 ? shape[0] : 1, channels, 3, 1);
  x = model.append(relu("relu1"), {x});
  for (int group = 1; group <= 4; ++group) {
    const int64_t in = channels;
    channels = group == 1 ? channels : 2 * channels;
    x = block(model, fmt::format("g{}a.", group), x, in, channels, group == 1 ? 1 : 2);
    x = block(model, fmt::format("g{}b.", group), x, channels, channels, 1);
  }
  model.append(global_average_pool("pool"), {x});
  model.append(linear("fc", channels, request.num_classes));
  return model;
}

}  // namespace millrace
