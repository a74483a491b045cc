// Model: input and target contract, named layers and which of them feeds which, loss. Knows no
// rank, stage or microbatch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/core/profile.h"
#include "millrace/model/layer.h"
#include "millrace/model/loss.h"

namespace millrace {

// The model's input, where a layer's index stands for what the layer makes.
constexpr int kModelInput = -1;

struct Model {
  std::string name;
  TensorSpec input;  // float32 or float64: the model's dtype; or int64, such as tokens
  TensorSpec target;
  // In an order in which every layer comes after those that feed it. The loss takes the output of
  // the last; every other layer's output has to be used by another.
  std::vector<LayerPtr> layers;
  // Per layer: the layers that make its inputs. A layer for which nothing stands here, or an empty
  // list, takes the output of the layer before it, the first the model's input.
  std::vector<std::vector<int>> inputs;
  std::unique_ptr<Loss> loss;

  // Adds a layer after the last one, or after those that it is to take its inputs from. Returns its
  // index.
  int append(LayerPtr layer, std::vector<int> from = {});

  // The layers that make the inputs of a layer, kModelInput among them: never empty.
  std::vector<int> inputs_of(int layer) const;
  // What the last layer makes; without layers, the model's input. Throws as check_model does.
  TensorSpec output() const;
  // Of parameters, gradients and of what passes between layers.
  at::ScalarType dtype() const;
  // From each layer to each that it feeds, once, by producer and then consumer.
  std::vector<ProfileEdge> edges() const;
  bool mixes_samples() const;  // whether any layer does
  // Classes that the loss asks of a sample: one, or one a position where the target is a sequence.
  // What LossSums::correct counts of.
  int64_t predictions() const { return target.dtype == at::kLong ? target.sample_elements() : 1; }

  std::vector<std::string> layer_names() const;
  int64_t num_parameters() const;
};

// A dry pass of shapes through all layers and the loss: throws the first mismatch, naming layer,
// expected and found. Duplicate or empty layer names, a model without layers, inputs that do not
// come before, outputs that nobody uses, and borrowed parameters that no layer before has are
// refused too. Returns the output spec of each layer.
std::vector<TensorSpec> check_model(const Model& model);

// Throws Error(kUnsupported) when one of these layers, ascending indices, borrows a parameter of a
// layer that is not among them: a stage cannot share weights with another one.
void check_ties(const Model& model, const std::vector<int>& layers);

// What a builtin gets: its own keys of [model] in run.toml, the data's sample shape and number of
// classes, the dtype.
struct ModelRequest {
  Reader& options;  // the factory asks for its keys; the caller calls finish()
  TensorSpec input;
  int64_t num_classes = 10;
  at::ScalarType dtype = at::kFloat;  // of parameters; the input's too unless that is int64
};

struct ModelEntry {
  std::string name;
  std::string text;
  std::string options;  // "depth=8 width=256": keys with defaults, for `list` and for key checks
                        // without libtorch
  Model (*make)(ModelRequest&);
};
// The builtins, then what the program added.
const std::vector<ModelEntry>& models();
// For a program with models of its own (cli/torch/program.h), before anything else runs: not
// thread-safe. Throws Error(kInvalidArgument) when the name is taken.
void add_model(ModelEntry entry);
const ModelEntry& find_model(const std::string& name);

}  // namespace millrace
