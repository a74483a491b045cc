// What the tests of `model` compare with: libtorch's autograd, and tensors that are the same on
// every run.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/model/model.h"

namespace millrace::testing {

// Normal draws, the same for every dtype up to rounding.
at::Tensor random_tensor(const std::vector<int64_t>& sizes, at::ScalarType dtype, uint64_t seed);

// max|a - b| / max|b|; infinity when shapes or dtypes differ or a value is not finite.
double difference(const at::Tensor& a, const at::Tensor& b);
bool same_bits(const at::Tensor& a, const at::Tensor& b);

// 1e-12 for float64, 1e-5 for float32: a few hundred roundings of sums in another order.
double tolerance(at::ScalarType dtype);

// f(leaves) and the gradients of sum(f(leaves) * grad) with respect to each leaf, by autograd.
struct Differentiated {
  at::Tensor value;
  Tensors gradients;
};
using Function = std::function<at::Tensor(const Tensors& leaves)>;
Differentiated by_autograd(const Function& f, const Tensors& leaves, const at::Tensor& grad);

// The message of the Error that `call` throws, checked to have this code; "" when it throws none.
std::string message_of(const std::function<void()>& call,
                       ErrorCode code = ErrorCode::kInvalidArgument);

// Weight sums by "layer.parameter" of the model run as stages of the layers up to each of `ends`,
// from initial weights by one seed.
std::map<std::string, at::Tensor> gradients_by_stages(const Model& model,
                                                      const std::vector<int>& ends,
                                                      const at::Tensor& input,
                                                      const at::Tensor& target,
                                                      bool halves = false);

// A builtin model; `options` as JSON, such as {"depth": 3}. `dtype` is its own where the input is
// of integers.
Model builtin_model(const std::string& name, const std::string& options, TensorSpec input,
                    int64_t num_classes, at::ScalarType dtype = at::kFloat);

}  // namespace millrace::testing
