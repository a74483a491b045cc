// Models whose layers have several inputs or several users, and stages cut out of them.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "millrace/model/layers.h"
#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;

// a feeds b and, past it, the sum and the second sum; b's output is used twice by the first sum;
// the model's input is used again near the end.
//
//   in -> a -> b ==> s1 -> c -> s2 -> d -> s3
//    |    +---------> +---------> +         |
//    +--> e ------------------------------> +
Model graph() {
  Model model;
  model.name = "graph";
  model.input = {{6}, at::kDouble};
  model.target = {{6}, at::kDouble};
  model.loss = half_squared_error();
  const int a = model.append(linear("a", 6, 6));
  const int b = model.append(tanh("b"));
  model.append(add("s1"), {a, b, b});
  const int c = model.append(linear("c", 6, 6));
  model.append(add("s2"), {c, a});
  const int d = model.append(linear("d", 6, 6));
  const int e = model.append(linear("e", 6, 6), {kModelInput});
  model.append(add("s3"), {d, e});
  return model;
}

at::Tensor reference(const Tensors& t) {
  const auto fc = [&](const at::Tensor& x, std::size_t p) {
    return x.matmul(t[p].t()).add(t[p + 1]);
  };
  const at::Tensor a = fc(t[0], 1);
  const at::Tensor b = a.tanh();
  const at::Tensor s2 = fc(a.add(b).add(b), 3).add(a);
  const at::Tensor out = fc(s2, 5).add(fc(t[0], 7));
  const at::Tensor difference = out.sub(t[9]);
  return difference.mul(difference).sum().mul(0.5);
}

// The model in stages, run as a runtime would: tensors go straight from producer to consumers,
// gradients straight back, the first consumer's first.
class Cut {
 public:
  Cut(const Model& model, const std::vector<std::vector<int>>& stages) {
    for (const std::vector<int>& layers : stages) {
      auto part = std::make_unique<Part>(Stage(model, layers));
      part->stage.initialize(part->flat, kSeed);
      parts_.push_back(std::move(part));
    }
  }

  void run(const at::Tensor& input, const at::Tensor& target, bool halves) {
    std::map<int, at::Tensor> made = {{kModelInput, input}};
    for (const auto& part : parts_) {
      Tensors inputs;
      for (const Border& border : part->stage.inputs()) {
        inputs.push_back(made.at(border.producer));
      }
      const Tensors outputs =
          part->stage.forward({}, inputs, part->weights, target, part->stash, loss_);
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        made[part->stage.outputs()[k].producer] = outputs[k];
      }
    }
    std::map<int, Tensors> back;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      std::vector<BorderGradient> gradients;
      for (std::size_t k = 0; k < (*part)->stage.outputs().size(); ++k) {
        for (const at::Tensor& one : back[(*part)->stage.outputs()[k].producer]) {
          gradients.insert(gradients.begin(), {static_cast<int>(k), 0, one});
        }
      }
      Tensors own;
      if (halves) {
        own = (*part)->stage.backward_input((*part)->stash, (*part)->weights, gradients);
        (*part)->stage.backward_weight({&(*part)->stash}, (*part)->sums);
      } else {
        own = (*part)->stage.backward((*part)->stash, (*part)->weights, gradients, (*part)->sums);
      }
      for (std::size_t k = 0; k < own.size(); ++k) {
        const Border& border = (*part)->stage.inputs()[k];
        EXPECT_EQ(own[k].defined(), border.needs_gradient);
        back[border.producer].push_back(own[k]);
      }
    }
  }

  // By "layer.parameter", so that cuts which order layers otherwise compare.
  std::map<std::string, at::Tensor> gradients() const { return by_name(&Part::sums); }
  std::map<std::string, at::Tensor> weights() const { return by_name(&Part::weights); }
  const LossSums& loss() const { return loss_; }

 private:
  struct Part {
    explicit Part(Stage own) : stage(std::move(own)) {}
    Stage stage;
    at::Tensor flat = stage.new_flat();
    at::Tensor flat_sums = stage.new_flat();
    WeightViews weights = stage.views(flat);
    WeightViews sums = stage.views(flat_sums);
    Stash stash;
  };

  std::map<std::string, at::Tensor> by_name(WeightViews Part::*member) const {
    std::map<std::string, at::Tensor> all;
    for (const auto& part : parts_) {
      std::size_t slot = 0;
      for (const Tensors& layer : (*part).*member) {
        for (const at::Tensor& piece : layer) {
          const ParameterSlot& at = part->stage.slots()[slot++];
          all[at.layer + "." + at.parameter] = piece;
        }
      }
    }
    return all;
  }

  std::vector<std::unique_ptr<Part>> parts_;
  LossSums loss_;
};

const std::vector<std::vector<int>> kWhole = {{0, 1, 2, 3, 4, 5, 6, 7}};

class GraphTest : public ::testing::Test {
 protected:
  Model model_ = graph();
  at::Tensor input_ = random_tensor({4, 6}, at::kDouble, 1);
  at::Tensor target_ = random_tensor({4, 6}, at::kDouble, 2);
};

TEST_F(GraphTest, LossAndGradientsAgreeWithAutograd) {
  Cut whole(model_, kWhole);
  whole.run(input_, target_, false);
  Tensors leaves = {input_};
  std::map<std::string, std::size_t> leaf_of;
  const std::map<std::string, at::Tensor> weights = whole.weights();
  for (const char* name : {"a", "c", "d", "e"}) {
    for (const char* parameter : {".weight", ".bias"}) {
      leaf_of[std::string(name) + parameter] = leaves.size();
      leaves.push_back(weights.at(std::string(name) + parameter));
    }
  }
  leaves.push_back(target_);
  const Differentiated expected =
      by_autograd(reference, leaves, at::tensor(1.0, at::TensorOptions().dtype(at::kDouble)));
  EXPECT_NEAR(whole.loss().loss / expected.value.item<double>(), 1.0, 1e-12);
  for (const auto& [name, gradient] : whole.gradients()) {
    EXPECT_LE(difference(gradient, expected.gradients[leaf_of.at(name)]), 1e-12) << name;
  }
}

// Every cut into two and three consecutive stages, a stage a layer, and one that is not
// consecutive.
TEST_F(GraphTest, EveryCutGivesTheSameGradients) {
  Cut whole(model_, kWhole);
  whole.run(input_, target_, false);
  std::vector<std::vector<std::vector<int>>> cuts = {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}},
                                                     {{0, 1, 2, 6}, {3, 4, 5, 7}}};
  const auto span = [](int first, int last) {
    std::vector<int> layers;
    for (int l = first; l < last; ++l) {
      layers.push_back(l);
    }
    return layers;
  };
  for (int first = 1; first < 8; ++first) {
    cuts.push_back({span(0, first), span(first, 8)});
    for (int second = first + 1; second < 8; ++second) {
      cuts.push_back({span(0, first), span(first, second), span(second, 8)});
    }
  }
  for (const auto& stages : cuts) {
    for (const bool halves : {false, true}) {
      SCOPED_TRACE(::testing::Message() << stages.size() << " stages, first of " << stages[0].size()
                                        << (halves ? ", halves" : ""));
      Cut cut(model_, stages);
      cut.run(input_, target_, halves);
      EXPECT_EQ(cut.loss().loss, whole.loss().loss);
      for (const auto& [name, gradient] : whole.gradients()) {
        // Where a later stage holds two users of one tensor its part is summed first, which is
        // another order of the same three or four numbers.
        EXPECT_LE(difference(cut.gradients().at(name), gradient), 1e-14) << name;
      }
    }
  }
}

TEST_F(GraphTest, BordersSayProducerSpecAndGradient) {
  const Stage low(model_, {0, 1});
  ASSERT_EQ(low.inputs().size(), 1U);
  EXPECT_TRUE(low.takes_data());
  EXPECT_FALSE(low.inputs()[0].needs_gradient);
  ASSERT_EQ(low.outputs().size(), 2U);
  EXPECT_EQ(low.outputs()[0].producer, 0);
  EXPECT_EQ(low.outputs()[1].producer, 1);
  EXPECT_TRUE(low.outputs()[1].needs_gradient);
  const Stage high(model_, {5, 6, 7});
  ASSERT_EQ(high.inputs().size(), 2U);
  EXPECT_EQ(high.inputs()[0].producer, kModelInput);
  EXPECT_FALSE(high.inputs()[0].needs_gradient);
  EXPECT_EQ(high.inputs()[1].producer, 4);
  EXPECT_EQ(high.inputs()[1].spec, (TensorSpec{{6}, at::kDouble}));
  ASSERT_EQ(high.outputs().size(), 1U) << "the model's output";
  EXPECT_EQ(high.outputs()[0].producer, 7);
  EXPECT_FALSE(high.outputs()[0].needs_gradient);
  EXPECT_TRUE(high.is_last());
}

TEST_F(GraphTest, EdgesNameEachUserOnce) {
  std::vector<std::string> text;
  for (const ProfileEdge& edge : model_.edges()) {
    text.push_back(edge.from + ">" + edge.to);
  }
  EXPECT_THAT(text,
              ElementsAre("a>b", "a>s1", "a>s2", "b>s1", "s1>c", "c>s2", "s2>d", "d>s3", "e>s3"));
}

TEST_F(GraphTest, AStageIsAscendingLayersOfTheModel) {
  for (const std::vector<int>& layers : {std::vector<int>{}, {1, 0}, {0, 0}, {-1, 0}, {7, 8}}) {
    EXPECT_THAT(message_of([&] { Stage(model_, layers); }), HasSubstr("ascending"));
  }
}

TEST(CheckGraph, InputsThatDoNotComeBeforeAndOutputsThatNobodyUses) {
  Model forward = graph();
  forward.inputs[2] = {0, 3};
  EXPECT_THAT(message_of([&] { check_model(forward); }),
              AllOf(HasSubstr("\"s1\""), HasSubstr("layer 3"), HasSubstr("before it")));
  Model dead = graph();
  dead.inputs[7] = {5, 4};
  EXPECT_THAT(message_of([&] { check_model(dead); }),
              AllOf(HasSubstr("uses the output of \"e\""), HasSubstr("leave it out")));
  Model one = graph();
  one.inputs[4] = {3};
  EXPECT_THAT(message_of([&] { check_model(one); }),
              AllOf(HasSubstr("\"s2\" (add)"), HasSubstr("at least two inputs, found 1")));
  Model two = graph();
  two.inputs[3] = {2, 2};
  EXPECT_THAT(message_of([&] { check_model(two); }),
              AllOf(HasSubstr("\"c\" (linear) takes one input, found 2")));
  Model shapes;
  shapes.input = {{6}};
  shapes.target = {{4}};
  shapes.loss = half_squared_error();
  const int a = shapes.append(linear("a", 6, 4));
  shapes.append(add("sum"), {a, kModelInput});
  EXPECT_THAT(message_of([&] { check_model(shapes); }),
              AllOf(HasSubstr("\"sum\""), HasSubstr("float32 [4]"), HasSubstr("float32 [6]")));
}

}  // namespace
}  // namespace millrace::testing
