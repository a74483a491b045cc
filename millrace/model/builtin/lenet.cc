// A convolutional network after LeCun et al., "Gradient-Based Learning Applied to Document
// Recognition", Proc. IEEE 1998, section II, in the wider form that is common today: max-pooling,
// ReLU, 20 and 50 channels, and padding that keeps a convolution's output as large as its input.
#include "millrace/model/internal/classification.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {

Model lenet(ModelRequest& request) {
  Model model;
  model.name = "lenet";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = internal::classification_loss(request.options);

  // An input that is no image is conv1's to refuse; any channel count will do for its message.
  const std::vector<int64_t>& shape = request.input.sample_shape;
  model.append(conv2d("conv1", shape.size() == 3 ? shape[0] : 1, 20, 5, 2));
  model.append(relu("relu1"));
  model.append(max_pool2d("pool1", 2));
  model.append(conv2d("conv2", 20, 50, 5, 2));
  model.append(relu("relu2"));
  model.append(max_pool2d("pool2", 2));
  model.append(flatten("flatten"));
  model.append(linear("fc1", model.output().sample_shape[0], 500));
  model.append(relu("relu3"));
  model.append(linear("fc2", 500, request.num_classes));
  return model;
}

}  // namespace millrace
