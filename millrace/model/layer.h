// Layer: the smallest unit the planner may cut between. A native layer is a handful of pure
// functions; it knows no rank, stage, microbatch or weight version: it gets its weights as
// arguments.
//
// Thread rule: const methods may run in several threads at once on different tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/random.h"

namespace millrace {

// Shape of one sample (no batch dimension) and dtype: the typed contract between layers and stages.
struct TensorSpec {
  std::vector<int64_t> sample_shape;
  at::ScalarType dtype = at::kFloat;
  int64_t sample_elements() const;
  int64_t sample_bytes() const;
  bool operator==(const TensorSpec&) const = default;
};
std::string to_string(const TensorSpec& spec);  // "float32 [20, 28, 28]"

std::string dtype_name(at::ScalarType dtype);  // "float32", "float64", "int64", ...
// The dtype that [train] dtype names: float32 or float64, else Error(kInvalidArgument).
at::ScalarType float_dtype(const std::string& name);

// One parameter of a layer. `bound`: initial values are uniform in [-bound, bound), drawn per
// element from (seed, layer name, parameter name), so they do not depend on layout; 0 gives zeros;
// `constant` adds an offset.
struct ParameterSpec {
  std::string name;  // "weight", "bias"
  std::vector<int64_t> shape;
  double bound = 0;
  double constant = 0;
  int64_t elements() const;
};

struct LayerContext {
  bool training = true;
};

using Tensors = std::vector<at::Tensor>;

class Layer {
 public:
  explicit Layer(std::string name) : name_(std::move(name)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string& name() const { return name_; }
  virtual const char* kind() const = 0;  // "linear", "conv2d", ...

  // Output spec for an input spec. Throws Error(kInvalidArgument) naming the layer, the expected
  // and found shape or dtype.
  virtual TensorSpec output(const TensorSpec& input) const = 0;
  virtual std::vector<ParameterSpec> parameters() const = 0;

  // input [B, sample_shape...]; weights in parameters() order. What backward needs goes into
  // `saved` (left empty when not training). Does not keep `weights`: backward gets its own.
  virtual at::Tensor forward(const LayerContext& context, const at::Tensor& input,
                             const Tensors& weights, Tensors& saved) const = 0;

  // Input-gradient half (I). `grad` is the gradient of the loss SUM with respect to the output.
  // Moves what the weight half needs from `saved` into `kept`. Returns an undefined tensor when
  // !need_input_gradient.
  virtual at::Tensor backward_input(const LayerContext& context, Tensors& saved,
                                    const Tensors& weights, const at::Tensor& grad,
                                    bool need_input_gradient, Tensors& kept) const = 0;

  // Weight-gradient half (W): ADDS the gradients of the loss sum into `sums` (views of the flat
  // buffer, in parameters() order). Layers without parameters do nothing.
  virtual void backward_weight(const LayerContext& context, const Tensors& kept,
                               const Tensors& sums) const = 0;

  // Whether the in-place form of the output's gradient is wanted is the layer's own business;
  // `grad` must not be written to (another rank may hold it).

 private:
  std::string name_;
};

using LayerPtr = std::unique_ptr<Layer>;

}  // namespace millrace
