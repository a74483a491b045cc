// A convolutional network after LeCun et al., "Gradient-Based Learning Applied to Document
// Recognition", Proc. IEEE 1998, section II, in the wider form that is common today: max-pooling,
// ReLU, 20 and 50 channels, and padding that keeps a convolution's output as large as its input.
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {
namespace {

// Appends a layer and returns what it makes of `input`; throws the layer's own error where the
// image is too small.
TensorSpec append(Model& model, LayerPtr layer, const TensorSpec& input) {
  TensorSpec output = layer->output(input);
  model.layers.push_back(std::move(layer));
  return output;
}

}  // namespace

Model lenet(ModelRequest& request) {
  Model model;
  model.name = "lenet";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = cross_entropy();

  TensorSpec spec = request.input;
  // An input that is no image is conv1's to refuse; any channel count will do for its message.
  const int64_t channels = spec.sample_shape.size() == 3 ? spec.sample_shape[0] : 1;
  spec = append(model, conv2d("conv1", channels, 20, 5, 2), spec);
  spec = append(model, relu("relu1"), spec);
  spec = append(model, max_pool2d("pool1", 2), spec);
  spec = append(model, conv2d("conv2", 20, 50, 5, 2), spec);
  spec = append(model, relu("relu2"), spec);
  spec = append(model, max_pool2d("pool2", 2), spec);
  spec = append(model, flatten("flatten"), spec);
  spec = append(model, linear("fc1", spec.sample_shape[0], 500), spec);
  spec = append(model, relu("relu3"), spec);
  append(model, linear("fc2", 500, request.num_classes), spec);
  return model;
}

}  // namespace millrace
