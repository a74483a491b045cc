// The builtin models for sequences of tokens: whole passes against libtorch's autograd, gradients
// that no cut changes, and what is refused.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kClasses = 11;
constexpr int64_t kLength = 6;
constexpr int64_t kBatch = 3;

at::Tensor tokens(uint64_t seed) {
  return random_tensor({kBatch, kLength}, at::kDouble, seed)
      .mul(1000)
      .abs()
      .to(at::kLong)
      .remainder(kClasses);
}

Model small(const std::string& name, const std::string& options, at::ScalarType dtype) {
  return builtin_model(name, options, {{kLength}, at::kLong}, kClasses, dtype);
}

const char kGpt[] = R"({"layers": 1, "width": 8, "heads": 2, "length": 9, "dropout": 0})";
const char kLstm[] = R"({"width": 5, "dropout": 0})";

// Parameters in model order.
at::Tensor gpt_reference(const Tensors& t, const at::Tensor& input) {
  const auto norm = [&](const at::Tensor& x, std::size_t p) {
    return at::layer_norm(x, {8}, t[p], t[p + 1]);
  };
  const auto fc = [&](const at::Tensor& x, std::size_t p) { return at::linear(x, t[p], t[p + 1]); };
  at::Tensor x = at::embedding(t[0], input).add(t[1].narrow(0, 0, kLength));
  const at::Tensor qkv =
      fc(norm(x, 2), 4).view({kBatch, kLength, 3, 2, 4}).permute({2, 0, 3, 1, 4});
  const at::Tensor ahead = at::ones({kLength, kLength}, at::kBool).triu(1);
  const at::Tensor shares = qkv[0]
                                .matmul(qkv[1].transpose(2, 3))
                                .div(2)
                                .masked_fill(ahead, -std::numeric_limits<double>::infinity())
                                .softmax(3);
  const at::Tensor heads = shares.matmul(qkv[2]).transpose(1, 2).reshape({kBatch, kLength, 8});
  x = x.add(fc(heads, 6));
  x = x.add(fc(at::gelu(fc(norm(x, 8), 10)), 12));
  return at::linear(norm(x, 14), t[16]);
}

at::Tensor lstm_reference(const Tensors& t, const at::Tensor& input) {
  const at::Tensor zeros = at::zeros({2, kBatch, 5}, t[0].options());
  const at::Tensor no_bias = at::zeros({20}, t[0].options());
  const at::Tensor x = std::get<0>(at::lstm(at::embedding(t[0], input), {zeros, zeros},
                                            {t[1], t[2], t[3], no_bias, t[4], t[5], t[6], no_bias},
                                            true, 2, 0, true, false, true));
  return at::linear(x, t[7], t[8]);
}

struct Task {
  const char* name;
  const char* options;
  at::Tensor (*reference)(const Tensors&, const at::Tensor&);
};
const Task kTasks[] = {{"gpt", kGpt, gpt_reference}, {"lstm-lm", kLstm, lstm_reference}};

TEST(TokenModels, LossAndEveryGradientAgreeWithAutograd) {
  const at::Tensor input = tokens(1);
  const at::Tensor target = tokens(2);
  for (const Task& task : kTasks) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const Model model = small(task.name, task.options, dtype);
      const Stage stage(model, 0, static_cast<int>(model.layers.size()));
      at::Tensor flat = stage.new_flat();
      stage.initialize(flat, 3);
      Tensors leaves;
      for (const ParameterSlot& slot : stage.slots()) {
        leaves.push_back(flat.narrow(0, slot.offset, slot.elements).view(slot.shape));
      }
      const Differentiated expected = by_autograd(
          [&](const Tensors& t) {
            return at::cross_entropy_loss(task.reference(t, input).flatten(0, 1), target.flatten(),
                                          {}, at::Reduction::Sum)
                .div(kLength);
          },
          leaves, at::full({}, 1.0, flat.options()));
      Stash stash;
      LossSums loss;
      stage.forward({}, input, stage.views(flat), target, stash, loss);
      EXPECT_NEAR(loss.loss / expected.value.item<double>(), 1.0, tolerance(dtype)) << task.name;
      EXPECT_EQ(loss.samples, kBatch);
      const std::map<std::string, at::Tensor> sums =
          gradients_by_stages(model, {stage.num_layers()}, input, target);
      for (std::size_t p = 0; p < leaves.size(); ++p) {
        const ParameterSlot& slot = stage.slots()[p];
        // A key's bias shifts all scores of a position alike: its gradient is zero but for
        // rounding.
        EXPECT_LE(difference(sums.at(slot.layer + "." + slot.parameter).view(slot.shape),
                             expected.gradients[p]),
                  20 * tolerance(dtype))
            << task.name << " " << slot.layer << "." << slot.parameter;
      }
    }
  }
}

// No tensor has more than two users, so every cut gives the same bits, dropout included.
TEST(TokenModels, EveryCutGivesTheSameBits) {
  for (const auto& [name, options] :
       {std::pair{"gpt", R"({"layers": 2, "width": 8, "heads": 2, "dropout": 0.3})"},
        {"lstm-lm", R"({"width": 5, "dropout": 0.3})"}}) {
    const Model model = small(name, options, at::kDouble);
    const auto num_layers = static_cast<int>(model.layers.size());
    const std::map<std::string, at::Tensor> whole =
        gradients_by_stages(model, {num_layers}, tokens(1), tokens(2));
    for (int cut = 1; cut < num_layers; ++cut) {
      for (const bool halves : {false, true}) {
        const std::map<std::string, at::Tensor> parts =
            gradients_by_stages(model, {cut, num_layers}, tokens(1), tokens(2), halves);
        ASSERT_EQ(parts.size(), whole.size());
        for (const auto& [parameter, gradient] : whole) {
          ASSERT_TRUE(same_bits(parts.at(parameter), gradient))
              << name << " " << parameter << ", cut at " << cut;
        }
      }
    }
  }
}

TEST(TokenModels, HaveOneToFiveMillionParametersByDefault) {
  const TensorSpec input{{128}, at::kLong};
  // Per block 12 width^2 and 13 width; two tables, the last norm, the projection.
  EXPECT_EQ(builtin_model("gpt", "{}", input, 256).num_parameters(),
            4 * (12 * 192 * 192 + 13 * 192) + (256 + 128 + 256 + 2) * 192);
  EXPECT_EQ(builtin_model("lstm-lm", "{}", input, 256).num_parameters(),
            2 * (8 * 256 * 256 + 4 * 256) + 2 * 256 * 256 + 256);
}

TEST(Gpt, TiedSavesTheProjection) {
  const Model free = small("gpt", R"({"width": 8, "heads": 2})", at::kFloat);
  const Model tied = small("gpt", R"({"width": 8, "heads": 2, "tied": true})", at::kFloat);
  EXPECT_EQ(free.num_parameters() - tied.num_parameters(), 8 * kClasses);
  EXPECT_EQ(free.layer_names(), tied.layer_names());
  const auto num_layers = static_cast<int>(tied.layers.size());
  EXPECT_NO_THROW(Stage(tied, 0, num_layers));
  EXPECT_THAT(message_of([&] { Stage(tied, 5, num_layers); }, ErrorCode::kUnsupported),
              AllOf(HasSubstr("\"tokens\""), HasSubstr("\"projection\"")));
}

TEST(TokenModels, DataThatDoesNotFitIsRefused) {
  for (const char* name : {"gpt", "lstm-lm"}) {
    EXPECT_THAT(message_of([&] {
                  builtin_model(name, "{}", {{1, 28, 28}}, 10);
                }),
                AllOf(HasSubstr(name), HasSubstr("int64 [length]"), HasSubstr("[1, 28, 28]"),
                      HasSubstr("\"text\"")));
    EXPECT_THAT(message_of([&] { small(name, R"({"dropout": 1})", at::kFloat); }),
                HasSubstr("dropout"));
  }
  EXPECT_THAT(message_of([] { small("gpt", R"({"length": 5})", at::kFloat); }),
              AllOf(HasSubstr("6 positions"), HasSubstr("learns 5")));
  EXPECT_THAT(message_of([] { small("gpt", R"({"width": 10, "heads": 4})", at::kFloat); }),
              AllOf(HasSubstr("10"), HasSubstr("heads = 4")));
}

}  // namespace
}  // namespace millrace::testing
