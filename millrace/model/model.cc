#include "millrace/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

void check_names(const Model& model) {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::string& name = model.layers[i]->name();
    if (name.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("model \"{}\": layer {} ({}) has no name; checkpoints and plans go by "
                      "names",
                      model.name, i, model.layers[i]->kind()));
    }
    if (!seen.insert(name).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("model \"{}\": two layers are called \"{}\"; names must differ",
                              model.name, name));
    }
  }
}

void check_input(const Model& model) {
  const TensorSpec& input = model.input;
  const bool positive = std::all_of(input.sample_shape.begin(), input.sample_shape.end(),
                                    [](int64_t size) { return size >= 1; });
  if (!positive ||
      (input.dtype != at::kFloat && input.dtype != at::kDouble && input.dtype != at::kLong)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model \"{}\": expected an input of float32, float64 or int64 with "
                            "every size at least 1, found {}",
                            model.name, to_string(input)));
  }
}

// Every input comes before its layer, and every output but the last is used.
void check_inputs(const Model& model) {
  const auto num_layers = static_cast<int>(model.layers.size());
  if (model.inputs.size() > model.layers.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model \"{}\": inputs of {} layers for its {}", model.name,
                            model.inputs.size(), num_layers));
  }
  std::vector<bool> used(model.layers.size());
  for (int l = 0; l < num_layers; ++l) {
    for (const int from : model.inputs_of(l)) {
      if (from < kModelInput || from >= l) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("model \"{}\": layer \"{}\" ({}) takes the output of layer {}; "
                        "expected a layer before it, or -1 for the model's input",
                        model.name, model.layers[static_cast<std::size_t>(l)]->name(), l, from));
      }
      if (from != kModelInput) {
        used[static_cast<std::size_t>(from)] = true;
      }
    }
  }
  const auto unused = std::find(used.begin(), used.end() - 1, false);
  if (unused != used.end() - 1) {
    const auto l = static_cast<std::size_t>(unused - used.begin());
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model \"{}\": no layer uses the output of \"{}\" ({}); name it among "
                            "the inputs of a later one, or leave it out",
                            model.name, model.layers[l]->name(), l));
  }
}

// Every borrowed parameter is a layer's own that stands before.
void check_borrowed(const Model& model) {
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    for (const BorrowedParameter& borrowed : model.layers[l]->borrowed()) {
      const auto end = model.layers.begin() + static_cast<std::ptrdiff_t>(l);
      const bool found = std::any_of(model.layers.begin(), end, [&](const LayerPtr& owner) {
        const std::vector<ParameterSpec> own = owner->parameters();
        return owner->name() == borrowed.layer &&
               std::any_of(own.begin(), own.end(), [&](const ParameterSpec& parameter) {
                 return parameter.name == borrowed.name && parameter.shape == borrowed.shape;
               });
      });
      if (!found) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("layer \"{}\" ({}) shares the parameter \"{}\" {} of layer "
                                "\"{}\"; no layer of this name before it has such a parameter",
                                model.layers[l]->name(), model.layers[l]->kind(), borrowed.name,
                                internal::shape_text(borrowed.shape), borrowed.layer));
      }
    }
  }
}

// Output specs of all layers; throws a layer's own refusal.
std::vector<TensorSpec> outputs_of(const Model& model) {
  std::vector<TensorSpec> outputs;
  outputs.reserve(model.layers.size());
  TensorSpecs inputs;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    inputs.clear();
    for (const int from : model.inputs_of(static_cast<int>(l))) {
      inputs.push_back(from == kModelInput ? model.input : outputs[static_cast<std::size_t>(from)]);
    }
    outputs.push_back(model.layers[l]->output(inputs));
  }
  return outputs;
}

}  // namespace

int Model::append(LayerPtr layer, std::vector<int> from) {
  inputs.resize(layers.size());
  inputs.push_back(std::move(from));
  layers.push_back(std::move(layer));
  return static_cast<int>(layers.size()) - 1;
}

std::vector<int> Model::inputs_of(int layer) const {
  const auto l = static_cast<std::size_t>(layer);
  if (l < inputs.size() && !inputs[l].empty()) {
    return inputs[l];
  }
  return {layer == 0 ? kModelInput : layer - 1};
}

TensorSpec Model::output() const {
  if (layers.empty()) {
    return input;
  }
  check_inputs(*this);
  return outputs_of(*this).back();
}

at::ScalarType Model::dtype() const {
  // Nothing floating goes in: the first layer, an embedding, says what it makes of it.
  return at::isFloatingType(input.dtype) || layers.empty() ? input.dtype
                                                           : layers.front()->output({input}).dtype;
}

std::vector<ProfileEdge> Model::edges() const {
  std::vector<ProfileEdge> edges;
  const auto num_layers = static_cast<int>(layers.size());
  for (int from = 0; from < num_layers; ++from) {
    for (int to = from + 1; to < num_layers; ++to) {
      const std::vector<int> takes = inputs_of(to);
      if (std::find(takes.begin(), takes.end(), from) != takes.end()) {
        edges.push_back({layers[static_cast<std::size_t>(from)]->name(),
                         layers[static_cast<std::size_t>(to)]->name()});
      }
    }
  }
  return edges;
}

bool Model::mixes_samples() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerPtr& layer) { return layer->mixes_samples(); });
}

std::vector<std::string> Model::layer_names() const {
  std::vector<std::string> names;
  names.reserve(layers.size());
  for (const LayerPtr& layer : layers) {
    names.push_back(layer->name());
  }
  return names;
}

int64_t Model::num_parameters() const {
  int64_t count = 0;
  for (const LayerPtr& layer : layers) {
    for (const ParameterSpec& parameter : layer->parameters()) {
      count += parameter.elements();
    }
  }
  return count;
}

std::vector<TensorSpec> check_model(const Model& model) {
  if (model.layers.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model \"{}\" has no layers; expected at least one", model.name));
  }
  MILLRACE_CHECK(model.loss != nullptr, "model without a loss");
  check_names(model);
  check_input(model);
  check_inputs(model);
  check_borrowed(model);
  std::vector<TensorSpec> outputs = outputs_of(model);
  // Parameters of a stage share one buffer, so a model has one dtype.
  const at::ScalarType dtype = model.dtype();
  for (std::size_t l = 0; l < outputs.size(); ++l) {
    const Layer& layer = *model.layers[l];
    if (outputs[l].dtype != dtype) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("layer \"{}\" ({}): expected an output of {}, the model's dtype, "
                      "found {}",
                      layer.name(), layer.kind(), dtype_name(dtype), to_string(outputs[l])));
    }
  }
  try {
    model.loss->check(outputs.back(), model.target);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("layer \"{}\", the last: {}", model.layers.back()->name(),
                                          error.message()));
  }
  return outputs;
}

void check_ties(const Model& model, const std::vector<int>& layers) {
  for (const int l : layers) {
    const Layer& layer = *model.layers.at(static_cast<std::size_t>(l));
    for (const BorrowedParameter& borrowed : layer.borrowed()) {
      const bool inside = std::any_of(layers.begin(), layers.end(), [&](int other) {
        return model.layers[static_cast<std::size_t>(other)]->name() == borrowed.layer;
      });
      if (!inside) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("layers \"{}\" and \"{}\" share the parameter \"{}\", but a cut "
                                "between stages separates them; set model.tied = false, or keep "
                                "both in one stage (parallel.stages = 1)",
                                borrowed.layer, layer.name(), borrowed.name));
      }
    }
  }
}

}  // namespace millrace
