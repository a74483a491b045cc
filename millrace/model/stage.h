// Stage: some layers of a model compiled for one rank: flat parameters, forward and backward over a
// microbatch. Today a loop over layers; fusion and buffer planning can replace the loop without
// touching users.
//
// What enters and leaves is typed: a stage takes the tensors in inputs() and hands over those in
// outputs(), each made by one layer of the model and known by that layer's index. A skip edge is a
// tensor that stands among the inputs of a stage which is not the next one, or of several stages;
// each of these sends its own gradient straight to the producer, which sums them in the order of
// consumers.
//
// Thread rule: one thread at a time; different Stage objects of one Model may run at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
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
  std::vector<RowRange> rows = {};  // of the whole parameter; empty: this is all of it
};

// A buffer of a layer (batch norm's running statistics), in the order of Stage::new_buffers().
struct BufferSlot {
  std::string layer;
  std::string buffer;  // "running_mean"
};

// A tensor between stages.
struct Border {
  int producer = kModelInput;  // index of the layer that makes it
  TensorSpec spec;
  // Whether a gradient of it comes back. False where no layer at or before the producer has
  // parameters: then an undefined tensor stands for the gradient.
  bool needs_gradient = false;
};

// The gradient of one output, as one of its consumers made it.
struct BorderGradient {
  int border = 0;    // index into Stage::outputs()
  int consumer = 0;  // its stage
  at::Tensor tensor;
};

// Views of one flat buffer, per layer in stage order, per parameter of its own. Made once per live
// version.
using WeightViews = std::vector<Tensors>;

// What a microbatch leaves between its forward and its backward.
struct Stash {
  // Set before the forward: keep only every layer's inputs and run its forward again when its
  // backward comes. The caller then puts buffers that the repeated forward may write to into
  // `context` before the backward.
  bool keeps_inputs_only = false;
  LayerContext context;        // the forward's, without buffers
  std::vector<Tensors> saved;  // per layer
  at::Tensor loss_gradient;    // last stage only
  std::vector<Tensors> kept;   // per layer, between I and W
};

// Told, while a backward runs, that it has added all it will to elements [begin, end) of the flat
// gradient sums: one layer's, from the stage's last layer to its first.
using LayerDone = std::function<void(int64_t begin, int64_t end)>;

// What becomes of parameters that a stage's layers borrow from outside: they are refused, or a
// stage of one layer has copies of its own, which is good for measuring only.
enum class Ties { kRefused, kCopied };

// The part of every layer that can be split which a stage has; by default all of it.
struct StagePart {
  int part = 0;
  int parts = 1;
};

class Stage {
 public:
  // Layers of the model by index, ascending; need not be consecutive. The model must outlive the
  // stage. Error(kUnsupported) when a layer borrows a parameter from outside. A borrowed parameter
  // has one place in the flat buffer, its owner's; gradients of its uses are added there as
  // backwards meet them, the last use's first.
  //
  // With several `parts` each layer that Layer::split() splits in so many is that part of it, but
  // for layers that share a parameter with another; the others are whole. Passes then need
  // LayerContext::peers.
  Stage(const Model& model, std::vector<int> layers, Ties ties = Ties::kRefused,
        StagePart part = {});
  Stage(const Model& model, int first, int last);  // layers [first, last)

  // What forward takes, by producer: tensors of other stages, and the model's input (producer
  // kModelInput), which comes from the data, on whichever stage uses it.
  const std::vector<Border>& inputs() const { return inputs_; }
  // What forward returns, by producer: tensors that layers outside use and, on the stage that holds
  // the model's last layer, what that makes.
  const std::vector<Border>& outputs() const { return outputs_; }
  bool is_last() const { return is_last_; }  // holds the model's last layer: computes the loss
  bool takes_data() const;                   // the model's input is the first of inputs()

  int num_layers() const { return static_cast<int>(layers_.size()); }
  const Layer& layer(int index) const;  // by place in this stage
  const std::vector<ParameterSlot>& slots() const { return slots_; }
  int64_t flat_elements() const { return flat_elements_; }  // padding included (always zero)

  at::Tensor new_flat() const;  // zeros
  void initialize(at::Tensor& flat,
                  uint64_t seed) const;  // initial values by (seed, layer, parameter)
  WeightViews views(const at::Tensor& flat) const;

  const std::vector<BufferSlot>& buffer_slots() const { return buffer_slots_; }
  Tensors new_buffers() const;  // initial values, one tensor a slot
  // Zeros, for LayerContext::accumulators; and the update of all buffers from what forwards added.
  Tensors new_accumulators() const;
  void commit(const Tensors& accumulators, const Tensors& buffers) const;

  // Runs the layers on one tensor an input. On the last stage `target` must be defined: ADDS the
  // loss to `sums` and, when training, leaves its gradient in the stash. Returns one tensor an
  // output. The stash may share tensors with `inputs` and the result: nobody may write to those
  // before the backward. An input or gradient of another shape or dtype than the contract's is
  // Error(kInvalidArgument). `context.buffers` holds the stage's buffers.
  Tensors forward(const LayerContext& context, at::TensorList inputs, const WeightViews& weights,
                  const at::Tensor& target, Stash& stash, LossSums& sums) const;

  // Both halves, layer by layer: adds weight gradients of the loss sum into `sums`; returns one
  // gradient an input, undefined where the border needs none. `gradients` of outputs come in the
  // order of the layers that consume them; an output with several consumer stages has several, the
  // model's own output none. Each tensor's gradients are summed in the order of its consumers:
  // those in this stage, then those outside. Frees the stash as it goes.
  Tensors backward(Stash& stash, const WeightViews& weights,
                   c10::ArrayRef<BorderGradient> gradients, const WeightViews& sums,
                   const LayerDone& done = {}) const;
  Tensors backward_input(Stash& stash, const WeightViews& weights,
                         c10::ArrayRef<BorderGradient> gradients) const;
  // What a backward tells, when there is none.
  void tell_all(const LayerDone& done) const;
  // Of several microbatches at once, ascending: where a layer can, as one larger call.
  void backward_weight(c10::ArrayRef<Stash*> stashes, const WeightViews& sums,
                       const LayerDone& done = {}) const;

 private:
  // One layer of the loop. Values are numbered: the inputs, then what each layer makes.
  struct Step {
    const Layer* layer = nullptr;
    std::vector<int> sources;    // values it takes
    std::vector<int> last_uses;  // values that it is the last to take, borders excepted
    std::vector<int> uses;       // per source: its place among all uses of this stage
    bool has_backward = false;   // something at or before it has parameters
    bool need_input_gradient = false;
    std::vector<std::pair<std::size_t, std::size_t>> borrowed;  // step and parameter of the owner
    int64_t flat_begin = 0;  // of its own parameters in the flat buffer
    int64_t flat_end = 0;
    std::size_t first_buffer = 0;
    std::size_t num_buffers = 0;
    std::size_t first_accumulator = 0;
    std::size_t num_accumulators = 0;
  };

  void take_part(StagePart part);
  void compile(const std::vector<TensorSpec>& specs, const std::vector<bool>& needs_gradient);
  void lay_out();
  void find_borrowed();
  // What layer `step` is given of a flat buffer's views. Made in `own` where it borrows some.
  const Tensors& given(std::size_t step, const WeightViews& views, Tensors& own) const;
  Tensors walk_back(Stash& stash, const WeightViews& weights,
                    c10::ArrayRef<BorderGradient> gradients, const WeightViews* sums,
                    const LayerDone& done) const;
  static void tell(const Step& step, const LayerDone& done);
  void recompute(std::size_t index, Stash& stash, const Tensors& weights) const;
  at::Tensor take_gradient(std::size_t value, Tensors& pending,
                           c10::ArrayRef<BorderGradient> gradients) const;

  const Model* model_;
  std::vector<int> layers_;
  std::map<int, std::shared_ptr<const Layer>> parts_;  // of layers that are split, by index
  bool is_last_ = false;
  std::vector<Border> inputs_;
  std::vector<Border> outputs_;
  std::vector<const Layer*> first_user_;  // per input: for messages
  std::vector<Step> steps_;
  std::vector<std::size_t> first_use_;  // per value, and one past: its uses, in consumer order
  std::vector<int> border_of_;          // per value: its index in outputs_, or -1
  std::vector<ParameterSlot> slots_;
  std::vector<BufferSlot> buffer_slots_;
  int64_t flat_elements_ = 0;
};

}  // namespace millrace
