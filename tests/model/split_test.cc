// Split layers and stages, their parts in threads, against the whole.
#include "millrace/model/split.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <exception>
#include <thread>

#include "millrace/model/layers.h"
#include "millrace/model/stage.h"
#include "tests/model/reference.h"

namespace millrace::testing {
namespace {

// Parts that meet in plain memory, and count what they make together.
class MemoryPeers {
 public:
  explicit MemoryPeers(int parts) : barrier_(parts), brought_(static_cast<std::size_t>(parts)) {
    for (int part = 0; part < parts; ++part) {
      members_.push_back(std::make_unique<Member>(*this, part));
    }
  }

  LayerPeers& member(int part) { return *members_[static_cast<std::size_t>(part)]; }
  int64_t gathered() const { return gathered_; }  // elements of all results
  int64_t summed() const { return summed_; }

 private:
  class Member final : public LayerPeers {
   public:
    Member(MemoryPeers& all, int part) : all_(all), part_(part) {}
    int part() const override { return part_; }
    int parts() const override { return static_cast<int>(all_.brought_.size()); }
    at::Tensor gather(const at::Tensor& own, int64_t dim) override {
      const std::vector<at::Tensor> parts = meet(own);
      at::Tensor result = at::cat(parts, dim);
      all_.gathered_ += part_ == 0 ? result.numel() : 0;
      return result;
    }
    at::Tensor sum(at::Tensor own) override {
      EXPECT_TRUE(own.is_contiguous());
      const std::vector<at::Tensor> parts = meet(own);
      at::Tensor result = parts.front().clone();
      for (std::size_t i = 1; i < parts.size(); ++i) {
        result.add_(parts[i]);
      }
      all_.summed_ += part_ == 0 ? result.numel() : 0;
      return result;
    }

   private:
    std::vector<at::Tensor> meet(const at::Tensor& own) {
      all_.brought_[static_cast<std::size_t>(part_)] = own;
      all_.barrier_.arrive_and_wait();
      std::vector<at::Tensor> parts = all_.brought_;
      all_.barrier_.arrive_and_wait();
      return parts;
    }
    MemoryPeers& all_;
    int part_;
  };

  std::barrier<> barrier_;
  std::vector<at::Tensor> brought_;
  std::vector<std::unique_ptr<LayerPeers>> members_;
  std::atomic<int64_t> gathered_{0};
  std::atomic<int64_t> summed_{0};
};

void on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] { work(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

struct Passed {
  at::Tensor output;
  at::Tensor input_gradient;
  Tensors weight_gradients;
  Tensors weights;
};

// One layer as a stage of a model in which a gradient of its input is asked for.
struct Case {
  std::string name;
  std::function<LayerPtr()> make;
  std::vector<int64_t> sample_shape;
};

Passed pass(const Layer& layer, const Tensors& weights, const at::Tensor& input,
            const at::Tensor& grad, LayerPeers* peers, bool need_input_gradient) {
  Passed passed;
  passed.weights = weights;
  LayerContext context;
  context.peers = peers;
  Tensors saved;
  Tensors kept;
  passed.output = layer.forward(context, input, weights, saved);
  const Tensors back =
      layer.backward_input(context, saved, weights, grad, need_input_gradient, kept);
  EXPECT_EQ(back.size(), need_input_gradient ? 1U : 0U);
  if (need_input_gradient) {
    passed.input_gradient = back[0];
  }
  for (const at::Tensor& weight : weights) {
    // Not zero at first: gradients are added.
    passed.weight_gradients.push_back(weight.clone());
  }
  layer.backward_weight(context, kept, passed.weight_gradients);
  return passed;
}

class SplitTest : public ::testing::TestWithParam<Case> {};

TEST_P(SplitTest, PartsMakeTheWhole) {
  const LayerPtr whole = GetParam().make();
  std::vector<int64_t> sizes = GetParam().sample_shape;
  sizes.insert(sizes.begin(), 5);
  const at::Tensor input = random_tensor(sizes, at::kDouble, 1);
  Tensors weights;
  for (const ParameterSpec& spec : whole->parameters()) {
    EXPECT_TRUE(spec.rows.empty());
    weights.push_back(random_tensor(spec.shape, at::kDouble, 2 + weights.size()));
  }
  std::vector<int64_t> out = whole->output({{GetParam().sample_shape, at::kDouble}}).sample_shape;
  out.insert(out.begin(), 5);
  const at::Tensor grad = random_tensor(out, at::kDouble, 9);
  const Passed expected = pass(*whole, weights, input, grad, nullptr, true);
  for (const int parts : {2, 3, 4}) {
    SCOPED_TRACE(parts);
    MemoryPeers peers(parts);
    std::vector<LayerPtr> layers;
    std::vector<Tensors> own(static_cast<std::size_t>(parts));
    int64_t elements = 0;
    for (int part = 0; part < parts; ++part) {
      layers.push_back(whole->split(part, parts));
      ASSERT_NE(layers.back(), nullptr);
      EXPECT_EQ(layers.back()->name(), whole->name());
      const std::vector<ParameterSpec> specs = layers.back()->parameters();
      for (std::size_t p = 0; p < specs.size(); ++p) {
        own[static_cast<std::size_t>(part)].push_back(rows_of(weights[p], specs[p].rows));
        EXPECT_EQ(own[static_cast<std::size_t>(part)].back().sizes(),
                  at::IntArrayRef(specs[p].shape));
        EXPECT_DOUBLE_EQ(specs[p].bound, whole->parameters()[p].bound);
        elements += specs[p].elements();
      }
    }
    int64_t whole_elements = 0;
    for (const at::Tensor& weight : weights) {
      whole_elements += weight.numel();
    }
    EXPECT_EQ(elements, whole_elements);
    std::vector<Passed> passed(static_cast<std::size_t>(parts));
    on_threads(parts, [&](int part) {
      const auto p = static_cast<std::size_t>(part);
      passed[p] = pass(*layers[p], own[p], input, grad, &peers.member(part), true);
    });
    for (int part = 0; part < parts; ++part) {
      const Passed& each = passed[static_cast<std::size_t>(part)];
      EXPECT_LT(difference(each.output, expected.output), 1e-12);
      EXPECT_LT(difference(each.input_gradient, expected.input_gradient), 1e-12);
      EXPECT_TRUE(same_bits(each.output, passed.front().output));
      EXPECT_TRUE(same_bits(each.input_gradient, passed.front().input_gradient));
    }
    for (std::size_t p = 0; p < weights.size(); ++p) {
      std::vector<PartialTensor> pieces;
      std::vector<PartialTensor> pieces_of_weight;
      for (int part = 0; part < parts; ++part) {
        const auto i = static_cast<std::size_t>(part);
        const std::vector<RowRange> rows = layers[i]->parameters()[p].rows;
        pieces.push_back({passed[i].weight_gradients[p], rows});
        pieces_of_weight.push_back({own[i][p], rows});
      }
      EXPECT_LT(difference(joined(pieces), expected.weight_gradients[p]), 1e-12) << p;
      EXPECT_TRUE(same_bits(joined(pieces_of_weight), weights[p])) << p;
    }
    // Activations travel, never weights: outputs once and input gradients once; a recurrent layer's
    // states and their gradients, but for one step.
    const bool recurrent = std::string(whole->kind()) == "lstm";
    EXPECT_EQ(peers.gathered(), expected.output.numel());
    EXPECT_EQ(peers.summed(),
              input.numel() + (recurrent ? expected.output.numel() -
                                               expected.output.numel() / expected.output.size(1)
                                         : 0));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, SplitTest,
    ::testing::Values(Case{"linear", [] { return linear("l", 6, 8); }, {6}},
                      Case{"odd", [] { return linear("l", 5, 7, false); }, {5}},
                      Case{"positions", [] { return linear("l", 5, 9); }, {3, 5}},
                      Case{"conv", [] { return conv2d("c", 2, 7, 3, 1); }, {2, 6, 5}},
                      Case{"stride", [] { return conv2d("c", 3, 4, 3, 0, 2, false); }, {3, 7, 7}},
                      Case{"lstm", [] { return lstm("r", 4, 6); }, {5, 4}},
                      Case{"odd_lstm", [] { return lstm("r", 3, 5); }, {4, 3}},
                      Case{"one_step", [] { return lstm("r", 3, 4); }, {1, 3}}),
    [](const auto& test) { return test.param.name; });

TEST(SplitLayersTest, SayWhatStaysWhole) {
  EXPECT_EQ(linear("l", 4, 3)->split(0, 4), nullptr) << "3 rows for 4 parts";
  EXPECT_EQ(conv2d("c", 1, 1, 3)->split(0, 2), nullptr);
  EXPECT_EQ(tied_linear("t", "e", 4, 8)->split(0, 2), nullptr);
  EXPECT_EQ(relu("r")->split(0, 2), nullptr);
  EXPECT_EQ(batch_norm2d("b", 4)->split(0, 2), nullptr);
  const Model lenet = builtin_model("lenet", "{}", {{1, 28, 28}, at::kFloat}, 10);
  EXPECT_EQ(split_layers(lenet, 2).size(), 4U);
  EXPECT_TRUE(split_layers(lenet, 1).empty());
  LayerContext context;
  Tensors saved;
  EXPECT_THROW(
      linear("l", 4, 4)->split(0, 2)->forward(
          context, random_tensor({1, 4}, at::kFloat, 1),
          {random_tensor({2, 4}, at::kFloat, 1), random_tensor({2}, at::kFloat, 1)}, saved),
      Error)
      << "nobody to meet";
}

TEST(SplitLayersTest, ALayerThatLendsItsWeightStaysWhole) {
  Model model;
  model.name = "tied";
  model.input = {{4}, at::kDouble};
  model.append(linear("first", 4, 6));
  model.append(linear("lends", 6, 4, false));
  model.append(tied_linear("borrows", "lends", 6, 4), {0});
  model.append(add("sum"), {1, 2});
  EXPECT_EQ(split_layers(model, 2), std::set<std::string>{"first"});
}

// Initial weights, losses and gradients of a split model are the whole's.
void compare_models(const Model& model, int parts, double bound) {
  const int64_t batch = 6;
  std::vector<int64_t> sizes = model.input.sample_shape;
  sizes.insert(sizes.begin(), batch);
  const bool tokens = model.input.dtype == at::kLong;
  at::Tensor input = random_tensor(sizes, at::kDouble, 3);
  std::vector<int64_t> target_sizes = model.target.sample_shape;
  target_sizes.insert(target_sizes.begin(), batch);
  const at::Tensor target =
      random_tensor(target_sizes, at::kDouble, 4).abs().mul(3).to(at::kLong).remainder(4);
  input = tokens ? input.abs().mul(3).to(at::kLong).remainder(4) : input.to(model.input.dtype);
  std::vector<int> layers;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    layers.push_back(static_cast<int>(l));
  }
  struct Run {
    std::vector<ParameterSlot> slots;
    Tensors weights;
    Tensors gradients;
    LossSums loss;
    int64_t elements = 0;
  };
  const auto run = [&](StagePart part, LayerPeers* peers) {
    const Stage stage(model, layers, Ties::kRefused, part);
    Run result;
    result.slots = stage.slots();
    at::Tensor flat = stage.new_flat();
    stage.initialize(flat, 7);
    at::Tensor sums = stage.new_flat();
    const WeightViews weights = stage.views(flat);
    const WeightViews sum_views = stage.views(sums);
    Tensors buffers = stage.new_buffers();
    LayerContext context;
    context.peers = peers;
    context.buffers = buffers;
    Stash stash;
    stage.forward(context, input, weights, target, stash, result.loss);
    stage.backward(stash, weights, {}, sum_views);
    for (std::size_t l = 0; l < weights.size(); ++l) {
      for (std::size_t p = 0; p < weights[l].size(); ++p) {
        result.weights.push_back(weights[l][p]);
        result.gradients.push_back(sum_views[l][p]);
        result.elements += weights[l][p].numel();
      }
    }
    return result;
  };
  const Run whole = run({}, nullptr);
  MemoryPeers peers(parts);
  std::vector<Run> runs(static_cast<std::size_t>(parts));
  on_threads(parts, [&](int part) {
    runs[static_cast<std::size_t>(part)] = run({part, parts}, &peers.member(part));
  });
  for (const Run& each : runs) {
    EXPECT_NEAR(each.loss.loss, whole.loss.loss, bound * std::abs(whole.loss.loss));
    EXPECT_EQ(each.loss.loss, runs.front().loss.loss);
    ASSERT_EQ(each.slots.size(), whole.slots.size());
  }
  for (std::size_t p = 0; p < whole.slots.size(); ++p) {
    SCOPED_TRACE(whole.slots[p].layer + "." + whole.slots[p].parameter);
    if (runs.front().slots[p].rows.empty()) {
      for (const Run& each : runs) {
        EXPECT_TRUE(same_bits(each.gradients[p], runs.front().gradients[p]));
      }
      EXPECT_LT(difference(runs.front().gradients[p], whole.gradients[p]), bound);
      continue;
    }
    std::vector<PartialTensor> weights;
    std::vector<PartialTensor> gradients;
    for (const Run& each : runs) {
      weights.push_back({each.weights[p], each.slots[p].rows});
      gradients.push_back({each.gradients[p], each.slots[p].rows});
    }
    EXPECT_TRUE(same_bits(joined(weights), whole.weights[p]));
    EXPECT_LT(difference(joined(gradients), whole.gradients[p]), bound);
  }
}

TEST(SplitModelTest, TrainsAsTheWhole) {
  const TensorSpec image{{1, 28, 28}, at::kDouble};
  compare_models(builtin_model("mlp", "{}", {{12}, at::kDouble}, 5), 3, 1e-10);
  compare_models(builtin_model("lenet", "{}", image, 10), 2, 1e-10);
  compare_models(builtin_model("lstm-lm", R"({"width": 10})", {{6}, at::kLong}, 9, at::kDouble), 3,
                 1e-10);
}

TEST(SplitModelTest, APartHasItsShareOfTheParameters) {
  Model model;
  model.name = "wide";
  model.input = {{256}, at::kFloat};
  model.append(linear("a", 256, 1024));
  model.append(linear("b", 1024, 256));
  model.target = {{256}, at::kFloat};
  model.loss = half_squared_error();
  const Stage whole(model, 0, 2);
  for (const int parts : {2, 4}) {
    const Stage part(model, {0, 1}, Ties::kRefused, {parts - 1, parts});
    EXPECT_NEAR(static_cast<double>(part.flat_elements()) * parts,
                static_cast<double>(whole.flat_elements()), 0.05 * whole.flat_elements());
  }
}

}  // namespace
}  // namespace millrace::testing
