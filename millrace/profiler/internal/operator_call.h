// One call of a libtorch operator, described well enough to be made again: its schema, and its
// arguments with every tensor replaced by shape, strides and type.
//
// Plain values; used by the kernel recorder, which captures, and by kernel_alone, which calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace millrace::internal {

// A tensor without its elements. Undefined: no shape.
struct TensorShape {
  bool defined = false;
  bool strided = true;  // false: of a layout without strides, such as oneDNN's
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  bool operator==(const TensorShape&) const = default;
};
TensorShape shape_of(const at::Tensor& tensor);
bool is_contiguous(const TensorShape& shape);
int64_t elements(const TensorShape& shape);

// A tensor, a list of them, or any other value as it was.
using CallArgument = std::variant<TensorShape, std::vector<TensorShape>, c10::IValue>;

struct OperatorCall {
  std::string name;      // "aten::addmm"
  std::string overload;  // "out"; often empty
  std::vector<CallArgument> arguments;
  std::vector<TensorShape> outputs;  // set when the call has ended

  // All tensors among the arguments, lists flattened, in order; undefined ones included.
  std::vector<TensorShape> tensors() const;
};
OperatorCall capture(std::string name, std::string overload,
                     c10::ArrayRef<const c10::IValue> arguments);

// What makes two calls the same primitive: name, shapes, strides, types, and the lists of integers
// and booleans among the arguments (padding, masks). Other scalars do not matter.
std::string key_of(const OperatorCall& call);
// "[16, 64] [64, 32]s": s for a tensor that is not contiguous, an undefined one left out. Of a
// convolution's backward also which gradient it makes: input, weight or both.
std::string shapes_text(const OperatorCall& call);

// Multiplications and additions of matrix products and convolutions, from shapes; 0 for others.
double flops_of(const OperatorCall& call);
// Bytes of the tensors that it takes and makes, each read or written once; 0 for what only views.
double bytes_of(const OperatorCall& call);

// The calls that do one thing an element: the name without "aten::" and the _ of calls in place.
bool is_pointwise(const std::string& name);
// The calls that move or convert elements and compute nothing.
bool is_copy(const std::string& name);

}  // namespace millrace::internal
