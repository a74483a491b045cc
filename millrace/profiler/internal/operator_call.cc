#include "millrace/profiler/internal/operator_call.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace millrace::internal {
namespace {

constexpr std::array kPointwise{"add",
                                "sub",
                                "rsub",
                                "mul",
                                "div",
                                "neg",
                                "abs",
                                "exp",
                                "log",
                                "sqrt",
                                "rsqrt",
                                "reciprocal",
                                "pow",
                                "square",
                                "relu",
                                "clamp",
                                "clamp_min",
                                "clamp_max",
                                "sigmoid",
                                "tanh",
                                "gelu",
                                "silu",
                                "where",
                                "threshold",
                                "addcmul",
                                "addcdiv",
                                "maximum",
                                "minimum",
                                "masked_fill",
                                "tanh_backward",
                                "lerp",
                                "log1p",
                                "gelu_backward",
                                "sign",
                                "silu_backward",
                                "threshold_backward",
                                "erf",
                                "sin",
                                "cos",
                                "lt",
                                "gt",
                                "sigmoid_backward"};
constexpr std::array kCopies{"copy",   "clone",    "contiguous", "_to_copy", "cat",      "stack",
                             "repeat", "to_dense", "to_mkldnn",  "flip",     "_reorder", "roll"};

// "mul" of "aten::mul_".
std::string_view bare(std::string_view name) {
  const std::size_t colons = name.rfind("::");
  if (colons != std::string_view::npos) {
    name.remove_prefix(colons + 2);
  }
  if (name.size() > 1 && name.back() == '_') {
    name.remove_suffix(1);
  }
  return name;
}

template <std::size_t N>
bool among(std::string_view name, const std::array<const char*, N>& names) {
  return std::find(names.begin(), names.end(), bare(name)) != names.end();
}

double bytes_of(const TensorShape& shape) {
  return static_cast<double>(elements(shape)) * static_cast<double>(c10::elementSize(shape.dtype));
}

double product(const std::vector<int64_t>& sizes) {
  double result = 1;
  for (const int64_t size : sizes) {
    result *= static_cast<double>(size);
  }
  return result;
}

// Of a product of matrices [.., m, k] and [.., k, n].
double product_flops(const TensorShape& a, const TensorShape& b) {
  if (a.sizes.size() < 2 || b.sizes.empty()) {
    return 0;
  }
  return 2 * product(a.sizes) * static_cast<double>(b.sizes.back());
}

// Which gradients a convolution's backward makes: input, weight, bias. Empty for other operators.
std::vector<bool> gradient_mask(const OperatorCall& call) {
  std::vector<bool> mask;
  if (bare(call.name) != "convolution_backward" || call.arguments.empty()) {
    return mask;
  }
  const auto* value = std::get_if<c10::IValue>(&call.arguments.back());
  if (value != nullptr && value->isBoolList() && value->toBoolList().size() == 3) {
    for (const bool wanted : value->toBoolList()) {
      mask.push_back(wanted);
    }
  }
  return mask;
}

// Per element of the output (or of its gradient), a product with one filter.
double convolution_flops(const TensorShape& output, const TensorShape& weight) {
  if (weight.sizes.size() < 3 || weight.sizes[0] == 0) {
    return 0;
  }
  return 2 * static_cast<double>(elements(output)) * product(weight.sizes) /
         static_cast<double>(weight.sizes[0]);
}

}  // namespace

TensorShape shape_of(const at::Tensor& tensor) {
  TensorShape shape;
  if (!tensor.defined()) {
    return shape;
  }
  shape.defined = true;
  shape.sizes = tensor.sizes().vec();
  shape.dtype = tensor.scalar_type();
  shape.strided = tensor.layout() == at::kStrided;
  if (shape.strided) {
    shape.strides = tensor.strides().vec();
  }
  return shape;
}

bool is_contiguous(const TensorShape& shape) {
  int64_t expected = 1;
  for (std::size_t d = shape.sizes.size(); d-- > 0;) {
    if (shape.sizes[d] != 1 && shape.strided && shape.strides[d] != expected) {
      return false;
    }
    expected *= shape.sizes[d];
  }
  return shape.strided;
}

int64_t elements(const TensorShape& shape) {
  int64_t result = shape.defined ? 1 : 0;
  for (const int64_t size : shape.sizes) {
    result *= size;
  }
  return result;
}

std::vector<TensorShape> OperatorCall::tensors() const {
  std::vector<TensorShape> all;
  for (const CallArgument& argument : arguments) {
    if (const auto* one = std::get_if<TensorShape>(&argument)) {
      all.push_back(*one);
    } else if (const auto* list = std::get_if<std::vector<TensorShape>>(&argument)) {
      all.insert(all.end(), list->begin(), list->end());
    }
  }
  return all;
}

OperatorCall capture(std::string name, std::string overload,
                     c10::ArrayRef<const c10::IValue> arguments) {
  OperatorCall call{std::move(name), std::move(overload), {}, {}};
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      call.arguments.emplace_back(shape_of(argument.toTensor()));
    } else if (argument.isTensorList()) {
      std::vector<TensorShape> list;
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        list.push_back(shape_of(tensor));
      }
      call.arguments.emplace_back(std::move(list));
    } else {
      call.arguments.emplace_back(argument);
    }
  }
  return call;
}

std::string key_of(const OperatorCall& call) {
  std::string key = call.name + "." + call.overload;
  for (const CallArgument& argument : call.arguments) {
    if (const auto* value = std::get_if<c10::IValue>(&argument)) {
      if (value->isIntList()) {
        key += fmt::format("({})", fmt::join(value->toIntVector(), ","));
      } else if (value->isBoolList()) {
        key += '(';
        for (const bool flag : value->toBoolList()) {
          key += flag ? '1' : '0';
        }
        key += ')';
      } else if (value->isBool()) {
        key += value->toBool() ? '1' : '0';
      }
    }
  }
  for (const TensorShape& tensor : call.tensors()) {
    key += fmt::format("[{};{};{}]", fmt::join(tensor.sizes, ","), fmt::join(tensor.strides, ","),
                       tensor.defined ? static_cast<int>(tensor.dtype) : -1);
  }
  return key;
}

std::string shapes_text(const OperatorCall& call) {
  std::string text;
  for (const TensorShape& tensor : call.tensors()) {
    if (tensor.defined) {
      text += fmt::format("{}[{}]{}", text.empty() ? "" : " ", fmt::join(tensor.sizes, ", "),
                          is_contiguous(tensor) ? "" : "s");
    }
  }
  const std::vector<bool> mask = gradient_mask(call);
  if (!mask.empty()) {
    text += mask[0] && mask[1] ? " both" : mask[0] ? " input" : " weight";
  }
  return text;
}

double flops_of(const OperatorCall& call) {
  const std::vector<TensorShape> tensors = call.tensors();
  const std::string_view name = bare(call.name);
  if ((name == "mm" || name == "bmm" || name == "mv") && tensors.size() >= 2) {
    return name == "mv" ? 2 * product(tensors[0].sizes) : product_flops(tensors[0], tensors[1]);
  }
  if ((name == "addmm" || name == "baddbmm" || name == "addbmm") && tensors.size() >= 3) {
    return product_flops(tensors[1], tensors[2]);
  }
  if (name == "convolution_backward" && tensors.size() >= 3) {
    const std::vector<bool> mask = gradient_mask(call);
    const double halves = mask.empty() ? 0 : (mask[0] ? 1.0 : 0.0) + (mask[1] ? 1.0 : 0.0);
    return halves * convolution_flops(tensors[0], tensors[2]);
  }
  if (name.find("conv") != std::string_view::npos && tensors.size() >= 2 && !call.outputs.empty()) {
    return convolution_flops(call.outputs[0], tensors[1]);
  }
  return 0;
}

double bytes_of(const OperatorCall& call) {
  double bytes = 0;
  for (const TensorShape& tensor : call.tensors()) {
    bytes += bytes_of(tensor);
  }
  for (const TensorShape& tensor : call.outputs) {
    bytes += bytes_of(tensor);
  }
  return bytes;
}

bool is_pointwise(const std::string& name) { return among(name, kPointwise); }

bool is_copy(const std::string& name) {
  return among(name, kCopies) || bare(name).find("reorder") != std::string_view::npos;
}

}  // namespace millrace::internal
