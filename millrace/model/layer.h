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

// Rows [begin, end) of a tensor's first dimension.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// One parameter of a layer. `bound`: initial values are uniform in [-bound, bound), drawn per
// element from (seed, layer name, parameter name), so they do not depend on layout; 0 gives zeros;
// `constant` adds an offset. `initial`, where defined, gives them instead.
struct ParameterSpec {
  std::string name;  // "weight", "bias"
  std::vector<int64_t> shape;
  double bound = 0;
  double constant = 0;
  at::Tensor initial = {};
  // Of a layer that is a part of another: the rows of the whole parameter that these are, in their
  // order. Empty: the parameter is whole. Initial values are those of the whole's elements.
  std::vector<RowRange> rows = {};
  int64_t elements() const;
};

// A parameter that a layer uses and another one has (tied weights): `layer` stands before it in the
// model and lists the parameter, of this shape, among its own.
struct BorrowedParameter {
  std::string layer;
  std::string name;
  std::vector<int64_t> shape;
};

// One buffer of a layer: what a training forward updates and no gradient changes, such as running
// statistics. Starts as `constant` everywhere.
struct BufferSpec {
  std::string name;  // "running_mean"
  std::vector<int64_t> shape;
  double constant = 0;
};

using Tensors = std::vector<at::Tensor>;
using TensorSpecs = std::vector<TensorSpec>;

// The ranks that hold a part each of a layer that is split, this one among them. All parts call the
// same functions in the same order. Errors are the communicator's.
class LayerPeers {
 public:
  virtual ~LayerPeers() = default;
  virtual int part() const = 0;   // of this rank, from 0
  virtual int parts() const = 0;  // at least 2
  // All parts' tensors, which differ in no size but that of `dim`, joined along `dim` in order of
  // parts.
  virtual at::Tensor gather(const at::Tensor& own, int64_t dim) = 0;
  // The sum of all parts' tensors, added in one order: equal bits everywhere. `own` is
  // contiguous and given away.
  virtual at::Tensor sum(at::Tensor own) = 0;
};

// What part `part` of `parts` gets of `count` rows, as evenly as can be.
RowRange rows_of_part(int64_t count, int part, int parts);

// What a pass knows beside tensors. Random draws are keyed by (seed, step, layer, place of the
// sample): equal for every layout, and replayed when a backward or a second forward draws again.
struct LayerContext {
  bool training = true;
  uint64_t seed = 0;        // of the run
  int64_t step = 0;         // of the run, through all epochs
  int64_t first_place = 0;  // of the microbatch's first sample in the step's global minibatch
  // Given to a stage: all its buffers (Stage::new_buffers()); given to a layer: its own, in
  // buffers() order. The caller's, and alive during the forward. A training forward updates them;
  // no backward reads them.
  at::TensorList buffers = {};
  // Likewise its accumulators (Stage::new_accumulators()) where buffers are updated once a step
  // from all its microbatches; empty where every forward updates them.
  at::TensorList accumulators = {};
  LayerPeers* peers = nullptr;  // of split layers; outlives the pass

  // Key of a layer's draws in this step.
  RandomKey draws(const std::string& layer) const {
    return RandomKey(seed).with("draw").with(static_cast<uint64_t>(step)).with(layer);
  }
};

class Layer {
 public:
  explicit Layer(std::string name) : name_(std::move(name)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string& name() const { return name_; }
  virtual const char* kind() const = 0;  // "linear", "conv2d", ...

  // Output spec for the inputs' specs. Throws Error(kInvalidArgument) naming the layer, the
  // expected and found number of inputs, shape or dtype.
  virtual TensorSpec output(const TensorSpecs& inputs) const = 0;
  virtual std::vector<ParameterSpec> parameters() const = 0;
  // Multiplications and additions of a forward pass over one sample, from shapes; each half of the
  // backward that reads or writes weights costs as much again. 0: not counted.
  virtual double forward_flops(const TensorSpecs& /*inputs*/) const { return 0; }
  // Of other layers. Not counted, initialized, updated or saved a second time.
  virtual std::vector<BorrowedParameter> borrowed() const { return {}; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  // What a training forward adds to in place of updating buffers, all zero at first, in float64;
  // and the update of the buffers from it, after which it is zero again.
  virtual std::vector<BufferSpec> accumulators() const { return {}; }
  virtual void commit(at::TensorList /*accumulators*/, at::TensorList /*buffers*/) const {}
  // Whether a sample's result depends on the samples beside it, hence on how a minibatch is cut
  // into microbatches (batch norm).
  virtual bool mixes_samples() const { return false; }
  // Whether its backward can only read the weights that its forward read: it is then refused under
  // policies whose backward reads others.
  virtual bool needs_forward_weights() const { return false; }
  // Whether what it keeps for W has samples first in every tensor, so that the kept of several
  // microbatches, one behind the other, is that of all their samples.
  virtual bool joins_kept() const { return false; }

  // Part `part` of `parts` of this layer, of the same name, whose forward and backward meet the
  // other parts at LayerContext::peers: takes the same inputs as the whole and returns the same
  // output and gradients, to rounding. Null where it cannot be split in so many.
  virtual std::unique_ptr<Layer> split(int /*part*/, int /*parts*/) const { return nullptr; }

  // Each input [B, sample_shape...]; weights in parameters() order, then in borrowed() order. What
  // backward needs goes into `saved` (left empty when not training). Does not keep `weights`:
  // backward gets its own. Never writes to an input: it may be saved elsewhere, or be another
  // rank's.
  virtual at::Tensor forward(const LayerContext& context, at::TensorList inputs,
                             const Tensors& weights, Tensors& saved) const = 0;

  // Input-gradient half (I). `grad` is the gradient of the loss SUM with respect to the output; it
  // must not be written to (another rank may hold it). Moves what the weight half needs from
  // `saved` into `kept`. Returns one gradient an input, which may share memory with `grad`; none
  // (an empty list) when !need_input_gradient. `context` is the forward's, without buffers.
  virtual Tensors backward_input(const LayerContext& context, Tensors& saved,
                                 const Tensors& weights, const at::Tensor& grad,
                                 bool need_input_gradient, Tensors& kept) const = 0;

  // Weight-gradient half (W): ADDS the gradients of the loss sum into `sums` (views of the flat
  // buffer, in the order of forward's weights). Layers without any do nothing.
  virtual void backward_weight(const LayerContext& context, const Tensors& kept,
                               const Tensors& sums) const = 0;

 private:
  std::string name_;
};

using LayerPtr = std::unique_ptr<Layer>;

}  // namespace millrace
