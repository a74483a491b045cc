// The builtin models for images: their published numbers of parameters, and gradients that no cut
// changes.
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::HasSubstr;

TEST(Resnet18, HasThePublishedNumberOfParameters) {
  // 11,173,962 for 32x32 colour images and 10 classes; one channel saves 2 x 64 x 9 in the stem.
  EXPECT_EQ(builtin_model("resnet18", "{}", {{3, 32, 32}}, 10).num_parameters(), 11173962);
  EXPECT_EQ(builtin_model("resnet18", "{}", {{1, 28, 28}}, 10).num_parameters(), 11173962 - 1152);
}

TEST(Vgg11, HasThePublishedNumberOfParameters) {
  // With batch norm and one linear layer, for 32x32 colour images and 10 classes.
  EXPECT_EQ(builtin_model("vgg11", "{}", {{3, 32, 32}}, 10).num_parameters(), 9231114);
  EXPECT_EQ(builtin_model("vgg11", "{}", {{1, 28, 28}}, 10).num_parameters(), 9231114 - 1152);
}

TEST(Vgg11, LeavesOutThePoolsThatAreTooLarge) {
  const auto pools = [](const std::vector<int64_t>& shape) {
    int count = 0;
    for (const LayerPtr& layer : builtin_model("vgg11", "{}", {shape}, 10).layers) {
      count += std::string(layer->kind()) == "max_pool2d" ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(pools({3, 32, 32}), 5);
  EXPECT_EQ(pools({1, 28, 28}), 4);
}

TEST(Resnet18, ShapesAndSkipEdges) {
  const Model model = builtin_model("resnet18", "{}", {{3, 32, 32}}, 10);
  const std::vector<TensorSpec> outputs = check_model(model);
  const std::vector<std::string> names = model.layer_names();
  std::map<std::string, std::string> shape;
  for (std::size_t l = 0; l < names.size(); ++l) {
    shape[names[l]] = to_string(outputs[l]);
  }
  EXPECT_EQ(shape.at("g1b.relu2"), "float32 [64, 32, 32]");
  EXPECT_EQ(shape.at("g2a.add"), "float32 [128, 16, 16]");
  EXPECT_EQ(shape.at("g4b.relu2"), "float32 [512, 4, 4]");
  EXPECT_EQ(shape.at("pool"), "float32 [512]");
  std::set<std::string> edges;
  for (const ProfileEdge& edge : model.edges()) {
    edges.insert(edge.from + ">" + edge.to);
  }
  // A chain would have one edge less than layers; each of the eight blocks adds one.
  EXPECT_TRUE(edges.contains("relu1>g1a.add"));
  EXPECT_TRUE(edges.contains("g1b.relu2>g2a.conv1"));
  EXPECT_TRUE(edges.contains("g1b.relu2>g2a.conv_skip"));
  EXPECT_TRUE(edges.contains("g2a.bn_skip>g2a.add"));
  EXPECT_FALSE(edges.contains("g2a.bn2>g2a.conv_skip"));
  EXPECT_EQ(edges.size(), names.size() - 1 + 8);
}

TEST(Resnet18, OptionsAndImagesAreChecked) {
  EXPECT_EQ(builtin_model("resnet18", R"({"width": 8})", {{1, 8, 8}}, 3).layers.front()->kind(),
            std::string("conv2d"));
  EXPECT_THAT(message_of([] {
                builtin_model("resnet18", R"({"widht": 8})", {{1, 8, 8}}, 3);
              }),
              HasSubstr("`width`"));
  EXPECT_THAT(message_of([] { check_model(builtin_model("resnet18", "{}", {{784}}, 3)); }),
              HasSubstr("\"conv1\""));
}

// No tensor of a residual network has more than two users, so every cut gives the same bits.
TEST(Resnet18, EveryCutGivesTheSameBits) {
  const Model model = builtin_model("resnet18", R"({"width": 2})", {{1, 8, 8}, at::kDouble}, 3);
  const at::Tensor input = random_tensor({3, 1, 8, 8}, at::kDouble, 1);
  const at::Tensor target = at::tensor({2, 0, 1}, at::TensorOptions().dtype(at::kLong));
  const auto num_layers = static_cast<int>(model.layers.size());
  const std::map<std::string, at::Tensor> whole =
      gradients_by_stages(model, {num_layers}, input, target);
  EXPECT_EQ(whole.size(), 20U + 2 * 20 + 2) << "20 convolutions, 20 norms, one linear layer";
  for (int cut = 1; cut < num_layers; ++cut) {
    const std::map<std::string, at::Tensor> parts =
        gradients_by_stages(model, {cut, num_layers}, input, target);
    for (const auto& [name, gradient] : whole) {
      ASSERT_TRUE(same_bits(parts.at(name), gradient)) << name << ", cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace millrace::testing
