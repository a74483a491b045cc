#include "millrace/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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
  if (!positive || (input.dtype != at::kFloat && input.dtype != at::kDouble)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model \"{}\": expected an input of float32 or float64 with every size "
                            "at least 1, found {}",
                            model.name, to_string(input)));
  }
}

}  // namespace

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
  std::vector<TensorSpec> outputs;
  outputs.reserve(model.layers.size());
  TensorSpec spec = model.input;
  for (const LayerPtr& layer : model.layers) {
    const TensorSpec input = spec;
    spec = layer->output(input);
    // Parameters of a stage share one buffer, so a model has one dtype.
    if (spec.dtype != model.input.dtype) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer \"{}\" ({}): expected an output of {}, the model's dtype, "
                              "found {}",
                              layer->name(), layer->kind(), dtype_name(model.input.dtype),
                              to_string(spec)));
    }
    outputs.push_back(spec);
  }
  try {
    model.loss->check(spec, model.target);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("layer \"{}\", the last: {}", model.layers.back()->name(),
                                          error.message()));
  }
  return outputs;
}

}  // namespace millrace
