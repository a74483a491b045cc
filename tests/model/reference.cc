#include "tests/model/reference.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <limits>
#include <memory>

#include "millrace/model/stage.h"

namespace millrace::testing {

at::Tensor random_tensor(const std::vector<int64_t>& sizes, at::ScalarType dtype, uint64_t seed) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(at::kDouble));
  const RandomKey key = RandomKey(seed).with("test");
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.data_ptr<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return tensor.to(dtype);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes() ||
      a.scalar_type() != b.scalar_type()) {
    return std::numeric_limits<double>::infinity();
  }
  if (a.numel() == 0) {
    return 0;
  }
  const double scale = b.to(at::kDouble).abs().max().item<double>();
  const double most = a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item<double>();
  if (most == 0) {
    return 0;
  }
  const double ratio = most / scale;
  return ratio == ratio ? ratio : std::numeric_limits<double>::infinity();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 1e-5; }

Differentiated by_autograd(const Function& f, const Tensors& leaves, const at::Tensor& grad) {
  Tensors tracked;
  for (const at::Tensor& leaf : leaves) {
    tracked.push_back(leaf.detach().clone().requires_grad_());
  }
  const at::Tensor value = f(tracked);
  return {value.detach(), torch::autograd::grad({value}, tracked, {grad})};
}

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

std::map<std::string, at::Tensor> gradients_by_stages(const Model& model,
                                                      const std::vector<int>& ends,
                                                      const at::Tensor& input,
                                                      const at::Tensor& target, bool halves) {
  struct Part {
    explicit Part(Stage own) : stage(std::move(own)) {}
    Stage stage;
    at::Tensor flat = stage.new_flat();
    at::Tensor sums = stage.new_flat();
    Tensors buffers = stage.new_buffers();
    WeightViews weights = stage.views(flat);
    WeightViews sum_views = stage.views(sums);
    Stash stash;
  };
  std::vector<std::unique_ptr<Part>> parts;
  std::map<int, at::Tensor> made = {{kModelInput, input}};
  LossSums loss;
  int first = 0;
  for (const int end : ends) {
    parts.push_back(std::make_unique<Part>(Stage(model, first, end)));
    first = end;
    Part& part = *parts.back();
    part.stage.initialize(part.flat, 3);
    Tensors inputs;
    for (const Border& border : part.stage.inputs()) {
      inputs.push_back(made.at(border.producer));
    }
    const Tensors outputs = part.stage.forward({.buffers = part.buffers}, inputs, part.weights,
                                               target, part.stash, loss);
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      made[part.stage.outputs()[k].producer] = outputs[k];
    }
  }
  std::map<std::string, at::Tensor> all;
  std::map<int, Tensors> back;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const Stage& stage = (*part)->stage;
    std::vector<BorderGradient> given;
    for (std::size_t k = 0; k < stage.outputs().size(); ++k) {
      for (const at::Tensor& one : back[stage.outputs()[k].producer]) {
        given.insert(given.begin(), {static_cast<int>(k), 0, one});
      }
    }
    Tensors own;
    if (halves) {
      own = stage.backward_input((*part)->stash, (*part)->weights, given);
      stage.backward_weight({&(*part)->stash}, (*part)->sum_views);
    } else {
      own = stage.backward((*part)->stash, (*part)->weights, given, (*part)->sum_views);
    }
    for (std::size_t k = 0; k < own.size(); ++k) {
      back[stage.inputs()[k].producer].push_back(own[k]);
    }
    for (const ParameterSlot& slot : stage.slots()) {
      all[slot.layer + "." + slot.parameter] = (*part)->sums.narrow(0, slot.offset, slot.elements);
    }
  }
  return all;
}

Model builtin_model(const std::string& name, const std::string& options, TensorSpec input,
                    int64_t num_classes, at::ScalarType dtype) {
  const Document document = parse_json(options, "options");
  Reader reader(document);
  ModelRequest request{reader, std::move(input), num_classes, dtype};
  Model model = find_model(name).make(request);
  reader.finish();
  return model;
}

}  // namespace millrace::testing
