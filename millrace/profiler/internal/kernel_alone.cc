#include "millrace/profiler/internal/kernel_alone.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"

namespace millrace::internal {
namespace {

constexpr int kWarmUpCalls = 2;
constexpr std::size_t kLeastCalls = 5;
constexpr std::size_t kMostCalls = 500;

at::Tensor make_tensor(const TensorShape& shape) {
  if (!shape.defined) {
    return {};
  }
  // Strides may overlap (expanded tensors), which cannot be filled: fill what they reach into.
  int64_t reach = elements(shape) == 0 ? 0 : 1;
  for (std::size_t d = 0; d < shape.sizes.size() && reach > 0; ++d) {
    reach += (shape.sizes[d] - 1) * shape.strides[d];
  }
  at::Tensor room = at::zeros({reach}, shape.dtype);
  if (room.is_floating_point()) {
    room.uniform_(0.1, 1);
  }
  return room.as_strided(shape.sizes, shape.strides);
}

c10::IValue make_argument(const CallArgument& argument) {
  if (const auto* one = std::get_if<TensorShape>(&argument)) {
    return {make_tensor(*one)};
  }
  if (const auto* list = std::get_if<std::vector<TensorShape>>(&argument)) {
    c10::List<at::Tensor> tensors;
    for (const TensorShape& shape : *list) {
      tensors.push_back(make_tensor(shape));
    }
    return {tensors};
  }
  return std::get<c10::IValue>(argument);
}

torch::jit::Stack make_stack(const OperatorCall& call) {
  torch::jit::Stack stack;
  for (const CallArgument& argument : call.arguments) {
    stack.push_back(make_argument(argument));
  }
  return stack;
}

// Median of calls of `once`, which returns its own seconds.
double median_of(const std::function<double()>& once, double budget_s) {
  for (int i = 0; i < kWarmUpCalls; ++i) {
    once();
  }
  std::vector<double> seconds;
  const double begin_s = monotonic_s();
  while (seconds.size() < kMostCalls &&
         (seconds.size() < kLeastCalls || monotonic_s() - begin_s < budget_s)) {
    seconds.push_back(once());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

std::optional<double> time_alone(const OperatorCall& call, double budget_s) {
  for (const TensorShape& tensor : call.tensors()) {
    if (tensor.defined && !tensor.strided) {
      return std::nullopt;
    }
  }
  const auto found =
      c10::Dispatcher::singleton().findSchema({call.name.c_str(), call.overload.c_str()});
  if (!found) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  try {
    const bool writes = found->schema().is_mutable();
    const torch::jit::Stack arguments = make_stack(call);
    return median_of(
        [&] {
          // What was written to a thousand times would hold zeros or infinities.
          torch::jit::Stack stack = writes ? make_stack(call) : arguments;
          const double begin_s = monotonic_s();
          found->callBoxed(stack);
          return monotonic_s() - begin_s;
        },
        budget_s);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<double> time_blocked(const OperatorCall& call, double budget_s) {
  // mkldnn_convolution(input, weight, bias?, padding, stride, dilation, groups)
  if (call.name != "aten::mkldnn_convolution" || call.arguments.size() != 7) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  try {
    const torch::jit::Stack arguments = make_stack(call);
    const std::vector<int64_t> padding = arguments[3].toIntVector();
    const std::vector<int64_t> stride = arguments[4].toIntVector();
    const std::vector<int64_t> dilation = arguments[5].toIntVector();
    const int64_t groups = arguments[6].toInt();
    const at::Tensor plain = arguments[0].toTensor();
    if (plain.dim() != 4 || plain.scalar_type() != at::kFloat) {
      return std::nullopt;
    }
    const at::Tensor weight = at::mkldnn_reorder_conv2d_weight(
        arguments[1].toTensor().contiguous().to_mkldnn(), padding, stride, dilation, groups);
    const at::Tensor bias = arguments[2].isTensor() && arguments[2].toTensor().defined()
                                ? arguments[2].toTensor().to_mkldnn()
                                : at::Tensor();
    // What a convolution makes is in the layout that it would take: one of the same kind before
    // this one gives its input, where the channels allow it.
    const int64_t channels = plain.size(1);
    const at::Tensor identity = at::mkldnn_reorder_conv2d_weight(
        at::zeros({channels, channels, 1, 1}).to_mkldnn(), {0, 0}, {1, 1}, {1, 1}, 1);
    const at::Tensor input = at::mkldnn_convolution(plain.contiguous().to_mkldnn(), identity, {},
                                                    {0, 0}, {1, 1}, {1, 1}, 1);
    return median_of(
        [&] {
          const double begin_s = monotonic_s();
          const at::Tensor result =
              at::mkldnn_convolution(input, weight, bias, padding, stride, dilation, groups);
          return monotonic_s() - begin_s;
        },
        budget_s);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace millrace::internal
