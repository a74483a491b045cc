#include "millrace/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/model/layers.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Says that it makes float64 of anything, as a faulty layer might.
class Widen final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "widen"; }
  TensorSpec output(const TensorSpecs& inputs) const override {
    return {inputs[0].sample_shape, at::kDouble};
  }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  at::Tensor forward(const LayerContext&, at::TensorList inputs, const Tensors&,
                     Tensors&) const override {
    return inputs[0].to(at::kDouble);
  }
  Tensors backward_input(const LayerContext&, Tensors&, const Tensors&, const at::Tensor& grad,
                         bool, Tensors&) const override {
    return {grad.to(at::kFloat)};
  }
  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}
};

template <typename... Layers>
Model chain(TensorSpec input, TensorSpec target, std::unique_ptr<Loss> loss, Layers... layers) {
  Model model;
  model.name = "test";
  model.input = std::move(input);
  model.target = std::move(target);
  model.loss = std::move(loss);
  (model.layers.push_back(std::move(layers)), ...);
  return model;
}

const TensorSpec kLabel = {{}, at::kLong};

TEST(CheckModel, ReturnsEveryOutput) {
  const Model model = builtin_model("lenet", "{}", {{1, 28, 28}}, 10);
  const std::vector<TensorSpec> outputs = check_model(model);
  std::vector<std::string> text;
  for (const TensorSpec& spec : outputs) {
    text.push_back(to_string(spec));
  }
  EXPECT_THAT(text,
              ElementsAre("float32 [20, 28, 28]", "float32 [20, 28, 28]", "float32 [20, 14, 14]",
                          "float32 [50, 14, 14]", "float32 [50, 14, 14]", "float32 [50, 7, 7]",
                          "float32 [2450]", "float32 [500]", "float32 [500]", "float32 [10]"));
  EXPECT_THAT(model.layer_names(), ElementsAre("conv1", "relu1", "pool1", "conv2", "relu2", "pool2",
                                               "flatten", "fc1", "relu3", "fc2"));
  // 20 x 25 + 20, 50 x 20 x 25 + 50, 500 x 2450 + 500, 10 x 500 + 10
  EXPECT_EQ(model.num_parameters(), 520 + 25050 + 1225500 + 5010);
}

TEST(CheckModel, WidthThatDoesNotMeetTheNext) {
  const Model model =
      chain({{8}}, kLabel, cross_entropy(), linear("first", 8, 16), linear("second", 15, 4));
  EXPECT_THAT(message_of([&] { check_model(model); }),
              AllOf(HasSubstr("\"second\""), HasSubstr("expects float32 [15]"),
                    HasSubstr("found float32 [16]")));
}

TEST(CheckModel, TargetThatWouldBroadcast) {
  const Model model = chain({{8}}, {{}}, half_squared_error(), linear("head", 8, 1));
  EXPECT_THAT(message_of([&] { check_model(model); }),
              AllOf(HasSubstr("\"head\""), HasSubstr("float32 [1]"), HasSubstr("float32 []")));
}

TEST(CheckModel, FloatAgainstDouble) {
  const Model inside = chain({{8}}, kLabel, cross_entropy(), linear("a", 8, 8),
                             std::make_unique<Widen>("w"), linear("b", 8, 4));
  EXPECT_THAT(message_of([&] { check_model(inside); }),
              AllOf(HasSubstr("\"w\""), HasSubstr("float32"), HasSubstr("float64 [8]")));
  const Model at_loss =
      chain({{8}}, {{8}, at::kDouble}, half_squared_error(), linear("head", 8, 8));
  EXPECT_THAT(message_of([&] { check_model(at_loss); }),
              AllOf(HasSubstr("\"head\""), HasSubstr("float32 [8]"), HasSubstr("float64 [8]")));
}

TEST(CheckModel, NamesAndInput) {
  EXPECT_THAT(message_of([] { check_model(chain({{8}}, kLabel, cross_entropy())); }),
              HasSubstr("no layers"));
  EXPECT_THAT(message_of([] {
                check_model(chain({{8}}, kLabel, cross_entropy(), relu("a"), relu("b"), relu("a")));
              }),
              HasSubstr("two layers are called \"a\""));
  EXPECT_THAT(
      message_of([] { check_model(chain({{8}}, kLabel, cross_entropy(), relu("a"), relu(""))); }),
      HasSubstr("layer 1 (relu) has no name"));
  EXPECT_THAT(message_of([] {
                check_model(chain({{8, 0}}, kLabel, cross_entropy(), flatten("a")));
              }),
              HasSubstr("[8, 0]"));
  EXPECT_THAT(message_of([] {
                check_model(chain({{8}, at::kInt}, kLabel, cross_entropy(), flatten("a")));
              }),
              HasSubstr("int32 [8]"));
}

TEST(Models, EveryBuiltinChecksOutOnSeveralInputs) {
  const std::vector<TensorSpec> images = {{{1, 28, 28}}, {{3, 13, 9}}, {{2, 4, 4}, at::kDouble}};
  const std::vector<TensorSpec> tokens = {{{1}, at::kLong}, {{128}, at::kLong}};
  for (const ModelEntry& entry : models()) {
    const bool takes_tokens = entry.name == "gpt" || entry.name == "lstm-lm";
    for (const TensorSpec& input : takes_tokens ? tokens : images) {
      const Model model = builtin_model(entry.name, "{}", input, 7);
      EXPECT_EQ(model.name, entry.name);
      EXPECT_FALSE(entry.text.empty());
      const TensorSpec expected =
          takes_tokens ? TensorSpec{{input.sample_shape[0], 7}} : TensorSpec{{7}, input.dtype};
      EXPECT_EQ(check_model(model).back(), expected) << entry.name;
      EXPECT_EQ(model.predictions(), takes_tokens ? input.sample_shape[0] : 1) << entry.name;
    }
  }
}

TEST(Models, UnknownNameIsAnsweredWithTheNearest) {
  EXPECT_THAT(message_of([] { find_model("lennet"); }),
              AllOf(HasSubstr("\"lennet\""), HasSubstr("`lenet`"), HasSubstr("mlp")));
}

TEST(Mlp, DepthAndWidth) {
  const Model model = builtin_model("mlp", R"({"depth": 3, "width": 5})", {{2, 2}}, 10);
  EXPECT_THAT(model.layer_names(),
              ElementsAre("flatten", "linear1", "relu1", "linear2", "relu2", "linear3"));
  EXPECT_EQ(model.num_parameters(), (4 * 5 + 5) + (5 * 5 + 5) + (5 * 10 + 10));
  EXPECT_THAT(builtin_model("mlp", R"({"depth": 1})", {{4}}, 3).layer_names(),
              ElementsAre("flatten", "linear1"));
  EXPECT_EQ(builtin_model("mlp", "{}", {{784}}, 10).layers.size(), 1U + 8U + 7U);
}

TEST(Mlp, OptionsAreChecked) {
  for (const auto& [options, key] : {std::pair{R"({"depth": 0})", "depth"},
                                     {R"({"width": 0})", "width"},
                                     {R"({"depth": "x"})", "depth"},
                                     {R"({"widht": 3})", "`width`"}}) {
    EXPECT_THAT(message_of([&, o = options] { builtin_model("mlp", o, {{4}}, 3); }), HasSubstr(key))
        << options;
  }
}

TEST(Lenet, RefusesWhatThePoolsEatUp) {
  EXPECT_THAT(message_of([] {
                builtin_model("lenet", "{}", {{1, 2, 28}}, 10);
              }),
              AllOf(HasSubstr("\"pool2\""), HasSubstr("[50, 1, 14]")));
  EXPECT_THAT(message_of([] { builtin_model("lenet", "{}", {{784}}, 10); }),
              AllOf(HasSubstr("\"conv1\""), HasSubstr("[784]")));
}

TEST(TensorSpec, TextAndBytes) {
  const TensorSpec spec{{20, 28, 28}, at::kDouble};
  EXPECT_EQ(to_string(spec), "float64 [20, 28, 28]");
  EXPECT_EQ(spec.sample_elements(), 15680);
  EXPECT_EQ(spec.sample_bytes(), 125440);
  EXPECT_EQ(to_string(kLabel), "int64 []");
  EXPECT_EQ(kLabel.sample_bytes(), 8);
  EXPECT_EQ(float_dtype("float32"), at::kFloat);
  EXPECT_EQ(float_dtype("float64"), at::kDouble);
  EXPECT_THAT(message_of([] { float_dtype("bfloat16"); }), HasSubstr("bfloat16"));
}

}  // namespace
}  // namespace millrace::testing
