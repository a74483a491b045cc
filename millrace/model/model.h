// Model: input and target contract, named layers in order, loss. Knows no rank, stage or
// microbatch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/model/layer.h"
#include "millrace/model/loss.h"

namespace millrace {

struct Model {
  std::string name;
  TensorSpec input;
  TensorSpec target;
  std::vector<LayerPtr> layers;  // a chain
  std::unique_ptr<Loss> loss;

  std::vector<std::string> layer_names() const;
  int64_t num_parameters() const;
};

// A dry pass of shapes through all layers and the loss: throws the first mismatch, naming layer,
// expected and found. Duplicate or empty layer names and a model without layers are refused too.
// Returns the output spec after each layer.
std::vector<TensorSpec> check_model(const Model& model);

// What a builtin gets: its own keys of [model] in run.toml, the data's sample shape and number of
// classes, the dtype.
struct ModelRequest {
  Reader& options;  // the factory asks for its keys; the caller calls finish()
  TensorSpec input;
  int64_t num_classes = 10;
};

struct ModelEntry {
  std::string name;
  std::string text;
  std::string options;  // "depth=8 width=256": keys with defaults, for `list` and for key checks
                        // without libtorch
  Model (*make)(ModelRequest&);
};
const std::vector<ModelEntry>& models();
const ModelEntry& find_model(const std::string& name);

}  // namespace millrace
