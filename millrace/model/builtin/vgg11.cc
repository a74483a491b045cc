// VGG-11 after Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
// Recognition", ICLR 2015, table 1, configuration A, in the form that is common for small images:
// batch norm after every convolution, and one linear layer on the mean of the last image in place
// of three on all of it. A max-pool is left out where the image is a pixel high or wide already.
// Option `width` is the first convolution's number of channels, 64 in the paper.
#include <fmt/format.h>

#include <vector>

#include "millrace/model/internal/classification.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {

Model vgg11(ModelRequest& request) {
  const int64_t width = request.options.count("width", 1, 64);

  Model model;
  model.name = "vgg11";
  model.input = request.input;
  model.target = {{}, at::kLong};
  model.loss = internal::classification_loss(request.options);

  // An input that is no image is conv1's to refuse; any channel count will do for its message.
  const std::vector<int64_t>& shape = request.input.sample_shape;
  int64_t in = shape.size() == 3 ? shape[0] : 1;
  int64_t height = shape.size() == 3 ? shape[1] : 1;
  int64_t image_width = shape.size() == 3 ? shape[2] : 1;
  int conv = 0;
  int pool = 0;
  for (const std::vector<int64_t>& group :
       std::vector<std::vector<int64_t>>{{1}, {2}, {4, 4}, {8, 8}, {8, 8}}) {
    for (const int64_t factor : group) {
      ++conv;
      model.append(conv2d(fmt::format("conv{}", conv), in, factor * width, 3, 1));
      model.append(batch_norm2d(fmt::format("bn{}", conv), factor * width));
      model.append(relu(fmt::format("relu{}", conv)));
      in = factor * width;
    }
    if (height >= 2 && image_width >= 2) {
      model.append(max_pool2d(fmt::format("pool{}", ++pool), 2));
      height /= 2;
      image_width /= 2;
    }
  }
  model.append(global_average_pool("average"));
  model.append(linear("fc", in, request.num_classes));
  return model;
}

}  // namespace millrace
