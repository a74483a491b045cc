#include "tests/model/reference.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <limits>

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

Model builtin_model(const std::string& name, const std::string& options, TensorSpec input,
                    int64_t num_classes) {
  const Document document = parse_json(options, "options");
  Reader reader(document);
  ModelRequest request{reader, std::move(input), num_classes};
  Model model = find_model(name).make(request);
  reader.finish();
  return model;
}

}  // namespace millrace::testing
