// Stage: consecutive layers compiled for one rank: flat parameters, forward and backward over a
// microbatch. Today a loop over layers; fusion and buffer planning can replace the loop without
// touching users.
//
// Thread rule: one thread at a time; different Stage objects of one Model may run at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "millrace/model/model.h"

namespace millrace {

// Where a parameter lies in its stage's flat buffer.
struct ParameterSlot {
  std::string layer;
  std::string parameter;  // "weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;  // elements; each parameter starts at a multiple of 16 elements
  int64_t elements = 0;
};

// Views of one flat buffer, per layer in stage order, per parameter. Made once per live version.
using WeightViews = std::vector<Tensors>;

// What a microbatch leaves between its forward and its backward.
struct Stash {
  std::vector<Tensors> saved;  // per layer
  at::Tensor loss_gradient;    // last stage only
  std::vector<Tensors> kept;   // per layer, between I and W
};

class Stage {
 public:
  // Layers [first, last) of the model, which must outlive the stage.
  Stage(const Model& model, int first, int last);

  bool is_first() const;
  bool is_last() const;
  const TensorSpec& input() const;
  const TensorSpec& output() const;
  int num_layers() const;
  const Layer& layer(int index) const;
  const std::vector<ParameterSlot>& slots() const;
  int64_t flat_elements() const;  // padding included (always zero)

  at::Tensor new_flat() const;  // zeros
  void initialize(at::Tensor& flat,
                  uint64_t seed) const;  // initial values by (seed, layer, parameter)
  WeightViews views(const at::Tensor& flat) const;

  // Runs the layers. On the last stage `target` must be defined: ADDS the loss to `sums` and, when
  // training, leaves its gradient in the stash. Returns the output. The stash may share tensors
  // with `input` and the output: nobody may write to those before the backward. An input or
  // gradient of another shape or dtype than the contract's is Error(kInvalidArgument).
  at::Tensor forward(const LayerContext& context, const at::Tensor& input,
                     const WeightViews& weights, const at::Tensor& target, Stash& stash,
                     LossSums& sums) const;

  // Both halves, layer by layer: adds weight gradients of the loss sum into `sums`; returns the
  // input gradient, undefined on the first stage. `grad` is ignored on the last stage. Frees the
  // stash as it goes.
  at::Tensor backward(const LayerContext& context, Stash& stash, const WeightViews& weights,
                      const at::Tensor& grad, const WeightViews& sums) const;
  at::Tensor backward_input(const LayerContext& context, Stash& stash, const WeightViews& weights,
                            const at::Tensor& grad) const;
  void backward_weight(const LayerContext& context, Stash& stash, const WeightViews& sums) const;

 private:
  at::Tensor walk_back(const LayerContext& context, Stash& stash, const WeightViews& weights,
                       const at::Tensor& grad, const WeightViews* sums) const;

  const Model* model_;
  int first_;
  int last_;
  int lowest_ = 0;  // the walk back ends with this layer: below it no gradient is of use
  std::vector<TensorSpec> specs_;  // input spec, then the output of each layer
  std::vector<ParameterSlot> slots_;
  int64_t flat_elements_ = 0;
};

}  // namespace millrace
