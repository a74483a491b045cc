#include "millrace/profiler/kernel_profile.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/torch/tiny.h"

namespace millrace {
namespace {

constexpr int64_t kWide = 192;

// Of [kWide, kWide]: transposes into a new place, then three passes that one could make. It has
// nothing to learn and hands gradients on as they are.
class Planted final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "planted"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  at::Tensor forward(const LayerContext& /*context*/, at::TensorList inputs,
                     const Tensors& /*weights*/, Tensors& /*saved*/) const override {
    return inputs[0].transpose(1, 2).contiguous().mul(0.5).add(1).tanh();
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& /*saved*/,
                         const Tensors& /*weights*/, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& /*kept*/) const override {
    return need_input_gradient ? Tensors{grad} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& /*kept*/,
                       const Tensors& /*sums*/) const override {}
};

KernelRequest request_for(const Model& model, const Dataset& data, int64_t samples) {
  KernelRequest request;
  request.model = &model;
  request.dataset = &data;
  request.samples = samples;
  request.seconds = 0;
  request.alone_s = 0;
  request.machine = "test";
  return request;
}

const KernelRow* find_row(const KernelProfile& profile, const std::string& name,
                          const std::string& shapes) {
  const auto found =
      std::find_if(profile.rows.begin(), profile.rows.end(),
                   [&](const KernelRow& row) { return row.name == name && row.shapes == shapes; });
  return found == profile.rows.end() ? nullptr : &*found;
}

TEST(KernelProfile, RowsSumToTheStepAndAreGroupedByShape) {
  const Model model = testing::mlp4();
  const testing::TensorData data = testing::mlp4_data(5);
  KernelRequest request = request_for(model, data, 12);
  request.microbatches = 2;
  request.busy_ranks = 2;
  const KernelProfile profile = profile_kernels(request);
  EXPECT_GE(profile.steps, 5);
  EXPECT_GT(profile.plain_step_s, 0);
  EXPECT_GE(profile.sum_s(), 0.95 * profile.step_s);
  EXPECT_NEAR(profile.sum_s(), profile.step_s, 1e-9 * profile.step_s)
      << "every second belongs to one row";
  EXPECT_TRUE(
      std::is_sorted(profile.rows.begin(), profile.rows.end(),
                     [](const KernelRow& a, const KernelRow& b) { return a.self_s > b.self_s; }));
  // The second and third linear layer, forward: the same primitive, twice a microbatch.
  const KernelRow* product = find_row(profile, "aten::addmm", "[16] [12, 16] [16, 16]s");
  ASSERT_NE(product, nullptr);
  EXPECT_EQ(product->calls, 4);
  EXPECT_EQ(product->layers, (std::vector<std::string>{"linear2", "linear3"}));
  EXPECT_EQ(product->dtype, "float64");
  EXPECT_EQ(product->flops, 2.0 * 12 * 16 * 16);
  EXPECT_EQ(product->bytes, 8.0 * (16 + 12 * 16 + 16 * 16 + 12 * 16));
  const KernelRow* first = find_row(profile, "aten::addmm", "[16] [12, 8] [8, 16]s");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->calls, 2);
  // What is no operator has a row too.
  for (const char* name : {"linear", "tanh", "loading", "sgd", "between layers", "recording"}) {
    EXPECT_NE(find_row(profile, name, ""), nullptr) << name;
  }
  EXPECT_EQ(find_row(profile, "loading", "")->calls, 2);
  EXPECT_EQ(find_row(profile, "sgd", "")->calls, 1);
  EXPECT_FALSE(at::hasCallbacks()) << "nothing is left behind";
}

TEST(KernelProfile, FindsAPlantedReorderAndChainAndRanksThem) {
  Model model;
  model.name = "planted";
  model.input = {{kWide, kWide}, at::kFloat};
  model.target = {{kWide * kWide}, at::kFloat};
  model.append(std::make_unique<Planted>("planted"));
  model.append(flatten("flat"));
  model.loss = half_squared_error();
  const testing::TensorData data{at::ones({2, kWide, kWide}), at::zeros({2, kWide * kWide})};
  const KernelProfile profile = profile_kernels(request_for(model, data, 4));
  const auto here = [](const KernelFinding& finding, KernelFindingKind kind) {
    return finding.kind == kind && finding.layers == std::vector<std::string>{"planted"};
  };
  const auto reorder = std::find_if(
      profile.findings.begin(), profile.findings.end(),
      [&](const KernelFinding& found) { return here(found, KernelFindingKind::kReorder); });
  ASSERT_NE(reorder, profile.findings.end());
  EXPECT_NE(reorder->what.find("reorders elements"), std::string::npos) << reorder->what;
  EXPECT_NE(reorder->what.find("[4, 192, 192]"), std::string::npos) << reorder->what;
  const auto chain = std::find_if(
      profile.findings.begin(), profile.findings.end(),
      [&](const KernelFinding& found) { return here(found, KernelFindingKind::kPointwise); });
  ASSERT_NE(chain, profile.findings.end());
  EXPECT_NE(chain->what.find("aten::mul, aten::add, aten::tanh"), std::string::npos) << chain->what;
  EXPECT_TRUE(std::is_sorted(profile.findings.begin(), profile.findings.end(),
                             [](const KernelFinding& a, const KernelFinding& b) {
                               return a.saves_at_most_s > b.saves_at_most_s;
                             }));
  EXPECT_LE(profile.findings.front().saves_at_most_s, profile.step_s);
}

TEST(KernelProfile, ComparesPrimitivesWithThemselvesAlone) {
  Model model;
  model.name = "small";
  model.input = {{3, 16, 16}, at::kFloat};
  model.target = {{}, at::kLong};
  model.append(conv2d("conv", 3, 16, 3, 1));
  model.append(flatten("flat"));
  model.append(linear("linear", 16 * 16 * 16, 10));
  model.loss = cross_entropy();
  const testing::TensorData data{at::ones({4, 3, 16, 16}), at::zeros({4}, at::kLong), 10};
  KernelRequest request = request_for(model, data, 8);
  request.alone_s = 0.002;
  const KernelProfile profile = profile_kernels(request);
  int compared = 0;
  for (const KernelRow& row : profile.rows) {
    if (row.flops > 0 && row.self_s >= 0.002 * profile.step_s) {
      ASSERT_TRUE(row.ratio().has_value()) << row.name << " " << row.shapes;
      EXPECT_TRUE(std::isfinite(*row.ratio()));
      EXPECT_GT(*row.ratio(), 0);
      ++compared;
    }
  }
  EXPECT_GE(compared, 3) << "convolution, its backward, products";

  const Document written = parse_json(to_json(to_value(profile)), "kernels.json");
  EXPECT_EQ(written.root.find("artifact")->string, "kernels");
  EXPECT_EQ(written.root.find("rows")->array.size(), profile.rows.size());
  EXPECT_EQ(written.root.find("findings")->array.size(), profile.findings.size());
  EXPECT_EQ(written.root.find("step_s")->number, profile.step_s);
  double sum = 0;
  for (const Value& row : written.root.find("rows")->array) {
    sum += row.find("self_s")->number;
  }
  EXPECT_NEAR(sum, written.root.find("sum_s")->number, 1e-12);
}

TEST(KernelProfile, ALayerThatFailsEndsEveryThreadAndTheRecording) {
  Model model;
  model.name = "broken";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.append(std::make_unique<testing::Scale>(
      "bad", [] { throw Error(ErrorCode::kUnsupported, "no such kernel"); }));
  model.loss = half_squared_error();
  const testing::TensorData data = testing::count_to(3);
  KernelRequest request = request_for(model, data, 1);
  request.busy_ranks = 2;
  EXPECT_THROW(profile_kernels(request), Error);
}

}  // namespace
}  // namespace millrace
