#include "millrace/model/stage.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "millrace/model/layers.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;

// One stage with its weights and sums, and what one microbatch leaves in it.
struct Worker {
  Worker(const Model& model, int first, int last) : stage(model, first, last) {
    stage.initialize(flat, kSeed);
  }
  at::Tensor forward(const at::Tensor& input, const at::Tensor& target) {
    return stage
        .forward(context, input, weights, stage.is_last() ? target : at::Tensor(), stash, loss)
        .front();
  }
  at::Tensor backward(const at::Tensor& grad) {
    return stage.backward(stash, weights, gradients(grad), sums).front();
  }
  at::Tensor backward_by_halves(const at::Tensor& grad) {
    const Tensors result = stage.backward_input(stash, weights, gradients(grad));
    stage.backward_weight({&stash}, sums);
    return result.front();
  }
  static std::vector<BorderGradient> gradients(const at::Tensor& grad) {
    return grad.defined() ? std::vector<BorderGradient>{{0, 0, grad}}
                          : std::vector<BorderGradient>{};
  }

  Stage stage;
  LayerContext context;
  at::Tensor flat = stage.new_flat();
  at::Tensor flat_sums = stage.new_flat();
  WeightViews weights = stage.views(flat);
  WeightViews sums = stage.views(flat_sums);
  Stash stash;
  LossSums loss;
};

int size_of(const Model& model) { return static_cast<int>(model.layers.size()); }

// Every parameter's piece of a worker's flat tensor, in model order.
Tensors pieces(const WeightViews& views) {
  Tensors all;
  for (const Tensors& layer : views) {
    all.insert(all.end(), layer.begin(), layer.end());
  }
  return all;
}

struct Task {
  std::string name;
  std::string options;
  std::vector<int64_t> sample_shape;
  Function reference;  // leaves: input, then the parameters; returns logits
};

std::vector<Task> tasks() {
  return {{"mlp",
           R"({"depth": 3, "width": 9})",
           {2, 3, 5},
           [](const Tensors& t) {
             at::Tensor x = at::relu(at::linear(t[0].flatten(1), t[1], t[2]));
             x = at::relu(at::linear(x, t[3], t[4]));
             return at::linear(x, t[5], t[6]);
           }},
          {"lenet", "{}", {1, 13, 10}, [](const Tensors& t) {
             at::Tensor x = at::max_pool2d(at::relu(at::conv2d(t[0], t[1], t[2], 1, 2)), {2, 2});
             x = at::max_pool2d(at::relu(at::conv2d(x, t[3], t[4], 1, 2)), {2, 2});
             x = at::relu(at::linear(x.flatten(1), t[5], t[6]));
             return at::linear(x, t[7], t[8]);
           }}};
}

class StageTask : public ::testing::TestWithParam<std::tuple<std::size_t, at::ScalarType>> {
 protected:
  at::ScalarType dtype_ = std::get<1>(GetParam());
  Task task_ = tasks()[std::get<0>(GetParam())];
  Model model_ = builtin_model(task_.name, task_.options, {task_.sample_shape, dtype_}, 4);
  at::Tensor input_ = [this] {
    std::vector<int64_t> shape = task_.sample_shape;
    shape.insert(shape.begin(), 5);
    return random_tensor(shape, dtype_, 3);
  }();
  at::Tensor target_ = at::tensor({0, 3, 1, 2, 1}, at::TensorOptions().dtype(at::kLong));
};

TEST_P(StageTask, LossAndEveryGradientAgreeWithAutograd) {
  Worker worker(model_, 0, size_of(model_));
  const at::Tensor logits = worker.forward(input_, target_);
  EXPECT_FALSE(worker.backward(at::Tensor()).defined());

  Tensors leaves = {input_};
  const Tensors parameters = pieces(worker.weights);
  leaves.insert(leaves.end(), parameters.begin(), parameters.end());
  const Differentiated expected = by_autograd(
      [&](const Tensors& t) {
        return at::cross_entropy_loss(task_.reference(t), target_, {}, at::Reduction::Sum);
      },
      leaves, at::full({}, 1.0, input_.options()));
  EXPECT_NEAR(worker.loss.loss / expected.value.item<double>(), 1.0, tolerance(dtype_));
  EXPECT_EQ(worker.loss.samples, 5);
  EXPECT_LE(difference(logits, task_.reference(leaves)), tolerance(dtype_));
  const Tensors sums = pieces(worker.sums);
  for (std::size_t p = 0; p < sums.size(); ++p) {
    EXPECT_LE(difference(sums[p], expected.gradients[p + 1]), 10 * tolerance(dtype_))
        << worker.stage.slots()[p].layer << "." << worker.stage.slots()[p].parameter;
  }
}

// Cutting the model anywhere, with whole or halved backwards, changes no bit of weights, loss,
// gradients.
TEST_P(StageTask, EveryCutGivesTheSameBits) {
  Worker whole(model_, 0, size_of(model_));
  const at::Tensor logits = whole.forward(input_, target_);
  whole.backward(at::Tensor());
  const Tensors weights = pieces(whole.weights);
  const Tensors sums = pieces(whole.sums);
  for (int cut = 1; cut < size_of(model_); ++cut) {
    for (const bool halves : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "cut " << cut << (halves ? ", halves" : ""));
      Worker low(model_, 0, cut);
      Worker high(model_, cut, size_of(model_));
      EXPECT_EQ(low.stage.outputs()[0].spec, high.stage.inputs()[0].spec);
      const at::Tensor out = high.forward(low.forward(input_, target_), target_);
      EXPECT_TRUE(same_bits(out, logits));
      EXPECT_EQ(high.loss.loss, whole.loss.loss);
      EXPECT_EQ(low.loss.samples, 0);
      if (halves) {
        EXPECT_FALSE(low.backward_by_halves(high.backward_by_halves(at::Tensor())).defined());
      } else {
        EXPECT_FALSE(low.backward(high.backward(at::Tensor())).defined());
      }
      Tensors both = pieces(low.weights);
      Tensors both_sums = pieces(low.sums);
      for (const at::Tensor& piece : pieces(high.weights)) {
        both.push_back(piece);
      }
      for (const at::Tensor& piece : pieces(high.sums)) {
        both_sums.push_back(piece);
      }
      ASSERT_EQ(both.size(), weights.size());
      for (std::size_t p = 0; p < both.size(); ++p) {
        EXPECT_TRUE(same_bits(both[p], weights[p])) << "weight " << p;
        EXPECT_TRUE(same_bits(both_sums[p], sums[p])) << "sum " << p;
      }
    }
  }
}

// With one cut no stage is in the middle; here every layer is a stage of its own.
TEST_P(StageTask, AStageALayerGivesTheSameBits) {
  Worker whole(model_, 0, size_of(model_));
  const at::Tensor logits = whole.forward(input_, target_);
  whole.backward(at::Tensor());
  for (const bool halves : {false, true}) {
    std::vector<std::unique_ptr<Worker>> chain;
    at::Tensor x = input_;
    for (int i = 0; i < size_of(model_); ++i) {
      chain.push_back(std::make_unique<Worker>(model_, i, i + 1));
      x = chain.back()->forward(x, target_);
    }
    EXPECT_TRUE(same_bits(x, logits));
    EXPECT_EQ(chain.back()->loss.loss, whole.loss.loss);
    at::Tensor grad;
    for (auto worker = chain.rbegin(); worker != chain.rend(); ++worker) {
      grad = halves ? (*worker)->backward_by_halves(grad) : (*worker)->backward(grad);
    }
    EXPECT_FALSE(grad.defined());
    Tensors weights;
    Tensors sums;
    for (const auto& worker : chain) {
      for (const at::Tensor& piece : pieces(worker->weights)) {
        weights.push_back(piece);
      }
      for (const at::Tensor& piece : pieces(worker->sums)) {
        sums.push_back(piece);
      }
    }
    const Tensors whole_weights = pieces(whole.weights);
    const Tensors whole_sums = pieces(whole.sums);
    ASSERT_EQ(sums.size(), whole_sums.size());
    for (std::size_t p = 0; p < sums.size(); ++p) {
      EXPECT_TRUE(same_bits(weights[p], whole_weights[p])) << "weight " << p;
      EXPECT_TRUE(same_bits(sums[p], whole_sums[p])) << "sum " << p;
    }
  }
}

TEST_P(StageTask, TwoMicrobatchesInFlightAddUp) {
  Worker whole(model_, 0, size_of(model_));
  whole.forward(input_, target_);
  whole.backward(at::Tensor());

  Worker parts(model_, 0, size_of(model_));
  Stash first;
  Stash second;
  const auto run = [&](Stash& stash, int64_t begin, int64_t size) {
    parts.stage.forward(parts.context, input_.narrow(0, begin, size), parts.weights,
                        target_.narrow(0, begin, size), stash, parts.loss);
  };
  run(first, 0, 3);
  run(second, 3, 2);
  parts.stage.backward(first, parts.weights, {}, parts.sums);
  parts.stage.backward(second, parts.weights, {}, parts.sums);
  EXPECT_NEAR(parts.loss.loss, whole.loss.loss, std::abs(whole.loss.loss) * tolerance(dtype_));
  EXPECT_EQ(parts.loss.samples, 5);
  EXPECT_LE(difference(parts.flat_sums, whole.flat_sums), 10 * tolerance(dtype_));
}

INSTANTIATE_TEST_SUITE_P(All, StageTask,
                         ::testing::Combine(::testing::Values(0U, 1U),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& tested) {
                           return tasks()[std::get<0>(tested.param)].name + "_" +
                                  dtype_name(std::get<1>(tested.param));
                         });

// Difference quotients see what autograd and this code might share: the pool's choice of places.
TEST(Stage, GradientsAreDifferenceQuotients) {
  const Model model = builtin_model("lenet", "{}", {{1, 9, 8}, at::kDouble}, 3);
  Worker worker(model, 0, size_of(model));
  const at::Tensor input = random_tensor({2, 1, 9, 8}, at::kDouble, 11);
  const at::Tensor target = at::tensor({2, 0}, at::TensorOptions().dtype(at::kLong));
  worker.forward(input, target);
  worker.backward(at::Tensor());
  const auto loss_at = [&](int64_t element, double shift) {
    const at::Tensor shifted = worker.flat.clone();
    shifted.data_ptr<double>()[element] += shift;
    Stash stash;
    LossSums sums;
    worker.stage.forward({.training = false}, input, worker.stage.views(shifted), target, stash,
                         sums);
    return sums.loss;
  };
  const double scale = worker.flat_sums.abs().max().item<double>();
  for (const ParameterSlot& slot : worker.stage.slots()) {
    for (const int64_t i : {int64_t{0}, slot.elements / 2, slot.elements - 1}) {
      const int64_t element = slot.offset + i;
      constexpr double kStep = 1e-6;
      const double quotient = (loss_at(element, kStep) - loss_at(element, -kStep)) / (2 * kStep);
      EXPECT_NEAR(worker.flat_sums.data_ptr<double>()[element], quotient, 1e-7 * scale)
          << slot.layer << "." << slot.parameter << " " << i;
    }
  }
}

TEST(Stage, SlotsAreAlignedAndPaddingStaysZero) {
  const Model model = builtin_model("mlp", R"({"depth": 3, "width": 7})", {{5}}, 3);
  Worker worker(model, 0, size_of(model));
  int64_t end = 0;
  at::Tensor rest = worker.flat.clone();
  for (const ParameterSlot& slot : worker.stage.slots()) {
    EXPECT_EQ(slot.offset % 16, 0);
    EXPECT_GE(slot.offset, end);
    EXPECT_LT(slot.offset, end + 16);
    end = slot.offset + slot.elements;
    rest.narrow(0, slot.offset, slot.elements).zero_();
  }
  EXPECT_EQ(worker.stage.flat_elements(), (end + 15) / 16 * 16);
  EXPECT_EQ(rest.abs().max().item<double>(), 0.0);
  EXPECT_EQ(worker.stage.slots()[1].layer, "linear1");
  EXPECT_EQ(worker.stage.slots()[1].parameter, "bias");
  EXPECT_EQ(worker.weights[1][0].data_ptr(), worker.flat.data_ptr());
}

TEST(Stage, InitialValuesAreUniformAndFloat32IsFloat64Rounded) {
  const Model single = builtin_model("mlp", R"({"depth": 2, "width": 300})", {{64}}, 3);
  const Model twice = builtin_model("mlp", R"({"depth": 2, "width": 300})", {{64}, at::kDouble}, 3);
  const Worker a(single, 0, size_of(single));
  const Worker b(twice, 0, size_of(twice));
  EXPECT_TRUE(same_bits(a.flat, b.flat.to(at::kFloat)));
  // linear1.weight: 19,200 draws in [-1/8, 1/8); mean and variance within four standard errors.
  const at::Tensor& weight = b.weights[1][0];
  EXPECT_LE(weight.abs().max().item<double>(), 0.125);
  const double count = static_cast<double>(weight.numel());
  const double variance = 0.125 * 0.125 / 3;
  EXPECT_NEAR(weight.mean().item<double>(), 0.0, 4 * std::sqrt(variance / count));
  EXPECT_NEAR(weight.pow(2).mean().item<double>() / variance, 1.0, 4 * 0.9 / std::sqrt(count));
  // Another seed, layer or parameter: other values.
  at::Tensor other = b.stage.new_flat();
  b.stage.initialize(other, kSeed + 1);
  EXPECT_FALSE(same_bits(other, b.flat));
  EXPECT_NE(b.weights[1][1][0].item<double>(), b.weights[1][0][0][0].item<double>());
  EXPECT_NE(b.weights[3][0][0][0].item<double>() / b.weights[1][0][0][0].item<double>(),
            8 / std::sqrt(300.0));
}

// Copies, and notes what is alive around it. The layers that it stands between keep what they save.
class Recorder final : public Layer {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using Layer::Layer;
  const char* kind() const override { return "recorder"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  at::Tensor forward(const LayerContext&, at::TensorList inputs, const Tensors&,
                     Tensors&) const override {
    at::Tensor result = inputs[0].clone();
    input_.emplace(inputs[0].getIntrusivePtr());
    output_.emplace(result.getIntrusivePtr());
    return result;
  }
  Tensors backward_input(const LayerContext&, Tensors&, const Tensors&, const at::Tensor& grad,
                         bool, Tensors&) const override {
    output_freed_in_backward_ = output_->expired();
    return {grad};
  }
  void backward_weight(const LayerContext&, const Tensors&, const Tensors&) const override {}

  mutable std::optional<Weak> input_;
  mutable std::optional<Weak> output_;
  mutable bool output_freed_in_backward_ = false;
};

TEST(Stage, KeepsOnlyWhatABackwardNeedsAndFreesItAsItGoes) {
  Model model;
  model.name = "recorded";
  model.input = {{6}};
  model.target = {{3}};
  model.loss = half_squared_error();
  model.layers.push_back(linear("a", 6, 6));
  auto owned = std::make_unique<Recorder>("r");
  const Recorder& recorder = *owned;
  model.layers.push_back(std::move(owned));
  model.layers.push_back(linear("b", 6, 3));
  const at::Tensor target = at::zeros({4, 3});
  for (const bool halves : {false, true}) {
    Worker worker(model, 0, 3);
    const at::Tensor input = random_tensor({4, 6}, at::kFloat, 1);
    const auto owners = input.use_count();
    worker.forward(input, target);
    EXPECT_TRUE(recorder.input_->expired()) << "nobody saves a linear layer's output";
    EXPECT_FALSE(recorder.output_->expired()) << "the next linear layer saves its input";
    EXPECT_GT(input.use_count(), owners);
    if (halves) {
      worker.backward_by_halves(at::Tensor());
      EXPECT_FALSE(recorder.output_freed_in_backward_) << "kept for the weight half";
    } else {
      worker.backward(at::Tensor());
      EXPECT_TRUE(recorder.output_freed_in_backward_);
    }
    EXPECT_TRUE(recorder.output_->expired());
    EXPECT_EQ(input.use_count(), owners);
    EXPECT_FALSE(worker.stash.loss_gradient.defined());
    EXPECT_TRUE(worker.stash.saved.empty());
    EXPECT_TRUE(worker.stash.kept.empty());
  }
}

// A linear layer that notes how often its backward was asked for, and whether for an input
// gradient.
class Asked final : public Layer {
 public:
  explicit Asked(std::string name) : Layer(std::move(name)) {}
  const char* kind() const override { return "asked"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inner_->output(inputs); }
  std::vector<ParameterSpec> parameters() const override { return inner_->parameters(); }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    return inner_->forward(context, inputs, weights, saved);
  }
  Tensors backward_input(const LayerContext& context, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need, Tensors& kept) const override {
    needs_.push_back(need);
    return inner_->backward_input(context, saved, weights, grad, need, kept);
  }
  void backward_weight(const LayerContext& context, const Tensors& kept,
                       const Tensors& sums) const override {
    inner_->backward_weight(context, kept, sums);
  }

  mutable std::vector<bool> needs_;

 private:
  LayerPtr inner_ = linear("inner", 6, 6);
};

TEST(Stage, NobodyComputesTheGradientOfTheData) {
  Model model;
  model.name = "asked";
  model.input = {{6}};
  model.target = {{6}};
  model.loss = half_squared_error();
  std::vector<const Asked*> asked;
  for (const char* name : {"low", "high"}) {
    auto layer = std::make_unique<Asked>(name);
    asked.push_back(layer.get());
    model.layers.push_back(relu(std::string("before_") + name));
    model.layers.push_back(std::move(layer));
  }
  const at::Tensor input = random_tensor({4, 6}, at::kFloat, 1);
  Worker whole(model, 0, 4);
  whole.forward(input, at::zeros({4, 6}));
  whole.backward(at::Tensor());
  EXPECT_EQ(asked[0]->needs_, std::vector<bool>{false});
  EXPECT_EQ(asked[1]->needs_, std::vector<bool>{true});
  // As the first layer of a later stage its gradient is the stage below's.
  Worker later(model, 3, 4);
  later.forward(input, at::zeros({4, 6}));
  EXPECT_TRUE(later.backward(at::Tensor()).defined());
  EXPECT_EQ(asked[1]->needs_, (std::vector<bool>{true, true}));
}

TEST(Stage, EvaluationLeavesNothingBehind) {
  const Model model = builtin_model("mlp", R"({"depth": 2, "width": 4})", {{6}}, 3);
  Worker worker(model, 0, size_of(model));
  worker.context.training = false;
  const at::Tensor input = random_tensor({2, 6}, at::kFloat, 1);
  const auto owners = input.use_count();
  worker.forward(input, at::zeros({2}, at::kLong));
  EXPECT_EQ(input.use_count(), owners);
  EXPECT_EQ(worker.loss.samples, 2);
  EXPECT_NE(message_of([&] { worker.backward(at::Tensor()); }, ErrorCode::kInternal), "");
}

TEST(Stage, FirstStageWithoutParametersHasNothingToDo) {
  const Model model = builtin_model("mlp", R"({"depth": 1})", {{2, 3}}, 3);
  Worker low(model, 0, 1);
  EXPECT_EQ(low.stage.flat_elements(), 0);
  const at::Tensor out = low.forward(random_tensor({4, 2, 3}, at::kFloat, 1), at::Tensor());
  EXPECT_EQ(out.sizes(), at::IntArrayRef({4, 6}));
  EXPECT_FALSE(low.backward(at::zeros({4, 6})).defined());
}

TEST(Stage, BorderTensorsOfTheWrongFormAreRefused) {
  const Model model = builtin_model("mlp", R"({"depth": 2, "width": 16})", {{6}}, 3);
  Worker low(model, 0, 2);
  Worker high(model, 2, size_of(model));
  const at::Tensor target = at::zeros({4}, at::kLong);
  EXPECT_THAT(message_of([&] {
                high.forward(at::zeros({4, 15}), target);
              }),
              AllOf(HasSubstr("\"relu1\""), HasSubstr("float32 [16]"), HasSubstr("[4, 15]")));
  EXPECT_THAT(message_of([&] {
                high.forward(at::zeros({4, 16}, at::kDouble), target);
              }),
              AllOf(HasSubstr("float32 [16]"), HasSubstr("float64 [4, 16]")));
  EXPECT_THAT(message_of([&] { low.forward(at::zeros({6}), target); }), HasSubstr("[6]"));
  low.forward(at::zeros({4, 6}), target);
  EXPECT_THAT(message_of([&] {
                low.backward(at::zeros({4, 16, 1}));
              }),
              AllOf(HasSubstr("\"linear1\""), HasSubstr("gradient"), HasSubstr("[4, 16, 1]")));
}

TEST(Stage, RangesThatAreNoneAreRefused) {
  const Model model = builtin_model("mlp", R"({"depth": 1})", {{6}}, 3);
  for (const auto& [first, last] : {std::pair{0, 0}, {1, 1}, {-1, 1}, {0, 3}, {2, 1}}) {
    EXPECT_THAT(message_of([&, f = first, l = last] { Stage(model, f, l); }),
                HasSubstr("at least one"));
  }
}

}  // namespace
}  // namespace millrace::testing
