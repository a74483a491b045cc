// What native layers and losses share: dispatch guard, shape errors, calls by dtype. Private to
// `model`.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <string>

#include "millrace/model/layer.h"

namespace millrace::internal {

// Held while a native layer calls libtorch: its kernels are called directly, without autograd's
// bookkeeping. Unlike inference mode it leaves ordinary tensors behind, which autograd may meet
// later.
using NativeGuard = at::AutoDispatchBelowADInplaceOrView;

// Error(kInvalidArgument): layer "conv1" (conv2d) expects EXPECTED, found FOUND[; ADVICE]
[[noreturn]] void refuse_input(const Layer& layer, const std::string& expected,
                               const TensorSpec& found, const std::string& advice = "");
// The only input of a layer that takes one; another number is refused.
const TensorSpec& one_input(const Layer& layer, const TensorSpecs& inputs);
// Refuses what is neither float32 nor float64.
void expect_float(const Layer& layer, const TensorSpec& input);

// Where a layer that is a part meets the others.
LayerPeers& peers(const Layer& layer, const LayerContext& context);

// "[20, 28, 28]"
std::string shape_text(at::IntArrayRef sizes);

// For a shape that is only known from a tensor in forward and needed in backward: [0, sample
// shape...], no bytes. The batch size comes from the gradient.
at::Tensor shape_only(const at::Tensor& tensor);
std::vector<int64_t> with_batch(int64_t batch, const at::Tensor& shape);

// Calls f(T{}) with the C++ type of a floating dtype.
template <typename F>
auto with_float_type(at::ScalarType dtype, F&& f) {
  MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble);
  return dtype == at::kFloat ? f(float{}) : f(double{});
}

}  // namespace millrace::internal
