// Models and data small enough to work out by hand, for tests of runtime and train. Test code only.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/plan.h"
#include "millrace/data/dataset.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace::testing {

// y = w * x with one scalar weight that starts at 1. `on_forward` may throw or wait.
class Scale final : public Layer {
 public:
  explicit Scale(std::string name, std::function<void()> on_forward = {})
      : Layer(std::move(name)), on_forward_(std::move(on_forward)) {}
  const char* kind() const override { return "scale"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {{"w", {1}, 0.0, 1.0}}; }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    if (on_forward_) {
      on_forward_();
    }
    if (context.training) {
      saved = {inputs[0]};
    }
    return inputs[0].mul(weights[0]);
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    kept = {saved[0], grad};
    saved.clear();
    return need_input_gradient ? Tensors{grad.mul(weights[0])} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& kept,
                       const Tensors& sums) const override {
    sums[0].add_(kept[0].mul(kept[1]).sum());
  }

 private:
  std::function<void()> on_forward_;
};

// y = a * b * x with two scalar weights that start at 1: each one's gradient depends on the other.
class Product final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "product"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override {
    return {{"a", {1}, 0.0, 1.0}, {"b", {1}, 0.0, 1.0}};
  }
  at::Tensor forward(const LayerContext& context, at::TensorList inputs, const Tensors& weights,
                     Tensors& saved) const override {
    if (context.training) {
      saved = {inputs[0]};
    }
    return inputs[0].mul(weights[0]).mul(weights[1]);
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& saved, const Tensors& weights,
                         const at::Tensor& grad, bool need_input_gradient,
                         Tensors& kept) const override {
    const at::Tensor gx = grad.mul(saved[0]).sum();
    kept = {gx.mul(weights[1]), gx.mul(weights[0])};
    saved.clear();
    return need_input_gradient ? Tensors{grad.mul(weights[0]).mul(weights[1])} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& kept,
                       const Tensors& sums) const override {
    sums[0].add_(kept[0]);
    sums[1].add_(kept[1]);
  }
};

// max|a-b|, and that divided by max|b|.
inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return max_difference(a, b) / b.abs().max().item<double>();
}

// The loss is the output itself.
class SumLoss final : public Loss {
 public:
  const char* kind() const override { return "sum"; }
  void check(const TensorSpec& /*output*/, const TensorSpec& /*target*/) const override {}
  LossSums evaluate(const at::Tensor& output, const at::Tensor& /*target*/,
                    at::Tensor* gradient) const override {
    if (gradient != nullptr) {
      *gradient = at::ones_like(output);
    }
    return {.loss = output.sum().item<double>(), .correct = 0, .samples = output.size(0)};
  }
};

// Given samples and targets.
class TensorData final : public Dataset {
 public:
  TensorData(at::Tensor input, at::Tensor target, int64_t classes = 0)
      : input_(std::move(input)), target_(std::move(target)), classes_(classes) {}
  int64_t size() const override { return input_.size(0); }
  TensorSpec input() const override {
    return {input_.sizes().slice(1).vec(), input_.scalar_type()};
  }
  TensorSpec target() const override {
    return {target_.sizes().slice(1).vec(), target_.scalar_type()};
  }
  int64_t num_classes() const override { return classes_; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    at::Tensor index = at::empty({count}, at::kLong);
    std::copy(indices, indices + count, index.data_ptr<int64_t>());
    at::Tensor target = target_.index_select(0, index);
    return {input_.index_select(0, index).to(dtype),
            target_.is_floating_point() ? target.to(dtype) : target};
  }

 private:
  at::Tensor input_;
  at::Tensor target_;
  int64_t classes_;
};

// x = 1, 2, ..., n with target 0.
inline TensorData count_to(int64_t n) {
  at::Tensor x = at::empty({n, 1}, at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    x.data_ptr<double>()[i] = static_cast<double>(i + 1);
  }
  return {x, at::zeros({n, 1}, at::kDouble)};
}

// LIN: prediction w * x, loss 0.5 * (w * x)^2 a sample; the second layer does nothing, so that two
// stages are possible.
inline Model lin() {
  Model model;
  model.name = "lin";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.layers.push_back(std::make_unique<Scale>("w"));
  model.layers.push_back(flatten("rest"));
  model.loss = half_squared_error();
  return model;
}

// PROD: h = a * b * x, y = w * h, the loss is y.
inline Model prod() {
  Model model;
  model.name = "prod";
  model.input = {{1}, at::kDouble};
  model.target = {{1}, at::kDouble};
  model.layers.push_back(std::make_unique<Product>("ab"));
  model.layers.push_back(std::make_unique<Scale>("w"));
  model.loss = std::make_unique<SumLoss>();
  return model;
}

// MLP4: linear layers 8-16-16-16-4 with tanh between, half squared error.
inline Model mlp4() {
  Model model;
  model.name = "mlp4";
  model.input = {{8}, at::kDouble};
  model.target = {{4}, at::kDouble};
  const int64_t widths[] = {8, 16, 16, 16, 4};
  for (int l = 0; l < 4; ++l) {
    model.layers.push_back(linear("linear" + std::to_string(l + 1), widths[l], widths[l + 1]));
    if (l < 3) {
      model.layers.push_back(tanh("tanh" + std::to_string(l + 1)));
    }
  }
  model.loss = half_squared_error();
  return model;
}

// `n` fixed random samples for MLP4.
inline TensorData mlp4_data(int64_t n) {
  const RandomKey key = RandomKey(7).with("mlp4 data");
  at::Tensor x = at::empty({n, 8}, at::kDouble);
  at::Tensor y = at::empty({n, 4}, at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data_ptr<double>()[i] = key.with("x").normal(static_cast<uint64_t>(i));
  }
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.data_ptr<double>()[i] = key.with("y").normal(static_cast<uint64_t>(i));
  }
  return {x, y};
}

// The model's layers in `sizes.size()` stages of so many layers, each on `replicas` ranks.
inline Plan plan_of(const Model& model, const std::vector<int>& sizes, int replicas,
                    const std::string& schedule, int microbatches = 1) {
  Plan plan;
  plan.schedule = schedule;
  plan.microbatches = microbatches;
  plan.workers = static_cast<int>(sizes.size()) * replicas;
  const std::vector<std::string> names = model.layer_names();
  std::size_t next = 0;
  int rank = 0;
  for (const int size : sizes) {
    PlanStage stage;
    stage.layers.assign(names.begin() + static_cast<std::ptrdiff_t>(next),
                        names.begin() + static_cast<std::ptrdiff_t>(next) + size);
    next += static_cast<std::size_t>(size);
    for (int i = 0; i < replicas; ++i) {
      stage.ranks.push_back(rank++);
    }
    plan.stages.push_back(stage);
  }
  return plan;
}

}  // namespace millrace::testing
