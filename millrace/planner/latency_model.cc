#include "millrace/planner/latency_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/planner/internal/latency_curve.h"
#include "millrace/planner/internal/layer_features.h"

namespace millrace {
namespace {

constexpr int64_t kLeastLayers = 20;

// What a clock tells of a pass that does nothing is less than this.
constexpr double kNothingS = 1e-6;
constexpr double kLeastS = 1e-7;

constexpr std::array<const char*, kLayerPasses.size()> kTimeFields = {
    "forward_s", "input_gradient_s", "weight_gradient_s"};

bool is_estimated(const LayerProfile& layer, const std::string& field) {
  return std::find(layer.estimated.begin(), layer.estimated.end(), field) != layer.estimated.end();
}

// What is learned of the layers of one kind, or of all.
struct Observations {
  std::array<std::vector<std::vector<double>>, kLayerPasses.size()> features;
  std::array<std::vector<double>, kLayerPasses.size()> logarithms;
  std::array<bool, kLayerPasses.size()> takes_time{};

  void add(const LayerProfile& layer, int64_t samples) {
    const std::vector<double> row = internal::layer_features(layer, samples);
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      if (!is_estimated(layer, kTimeFields[p])) {
        const double seconds = seconds_of(layer, kLayerPasses[p]);
        takes_time[p] = takes_time[p] || seconds > kNothingS;
        features[p].push_back(row);
        logarithms[p].push_back(std::log(std::max(kLeastS, seconds)));
      }
    }
  }

  std::array<LatencyCurve, kLayerPasses.size()> fit(bool smooth) const {
    std::array<LatencyCurve, kLayerPasses.size()> curves;
    for (std::size_t p = 0; p < kLayerPasses.size(); ++p) {
      if (takes_time[p]) {
        curves[p] = internal::fit_curve(features[p], logarithms[p], smooth);
      }
    }
    return curves;
  }
};

// Least relative error of seconds = a + b bytes, both at least 0, in closed form over two sums.
void learn_updates(const std::vector<Profile>& profiles, LatencyModel& model) {
  double ones = 0;
  double bytes = 0;
  double bytes_squared = 0;
  double targets = 0;
  double bytes_targets = 0;
  for (const Profile& profile : profiles) {
    for (const LayerProfile& layer : profile.layers) {
      if (layer.update_s > 0 && layer.parameter_bytes > 0 && !is_estimated(layer, "update_s")) {
        const double one = 1 / layer.update_s;
        const double size = static_cast<double>(layer.parameter_bytes) / layer.update_s;
        ones += one * one;
        bytes += one * size;
        bytes_squared += size * size;
        targets += one;
        bytes_targets += size;
      }
    }
  }
  if (ones == 0) {
    return;
  }
  const double determinant = ones * bytes_squared - bytes * bytes;
  if (determinant > 1e-12 * ones * bytes_squared) {
    model.update_s = (targets * bytes_squared - bytes_targets * bytes) / determinant;
    model.update_s_per_byte = (ones * bytes_targets - bytes * targets) / determinant;
  }
  if (determinant <= 1e-12 * ones * bytes_squared || model.update_s < 0) {
    model.update_s = 0;
    model.update_s_per_byte = bytes_targets / bytes_squared;
  } else if (model.update_s_per_byte < 0) {
    model.update_s = targets / ones;
    model.update_s_per_byte = 0;
  }
}

}  // namespace

double seconds_of(const LayerProfile& layer, LayerPass pass) {
  switch (pass) {
    case LayerPass::kForward:
      return layer.forward_s;
    case LayerPass::kInputGradient:
      return layer.input_gradient_s;
    case LayerPass::kWeightGradient:
      break;
  }
  return layer.weight_gradient_s;
}

double spread_of(const LayerProfile& layer, LayerPass pass) {
  switch (pass) {
    case LayerPass::kForward:
      return layer.forward_spread_s;
    case LayerPass::kInputGradient:
      return layer.input_gradient_spread_s;
    case LayerPass::kWeightGradient:
      break;
  }
  return layer.weight_gradient_spread_s;
}

LatencyModel learn_latencies(const std::vector<Profile>& profiles) {
  LatencyModel model;
  Observations all;
  std::map<std::string, Observations> kinds;
  for (const Profile& profile : profiles) {
    if (&profile == &profiles.front()) {
      model.machine = profile.machine;
      model.dtype = profile.dtype;
    }
    if (profile.machine != model.machine || profile.dtype != model.dtype) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a predictor is of one machine and dtype, found profiles of \"{}\", "
                              "{} and of \"{}\", {}; learn from each alone",
                              model.machine, model.dtype, profile.machine, profile.dtype));
    }
    for (const LayerProfile& layer : profile.layers) {
      if (!layer.kind.empty()) {
        all.add(layer, profile.samples_per_microbatch);
        kinds[layer.kind].add(layer, profile.samples_per_microbatch);
        ++model.num_layers;
      }
    }
  }
  if (model.num_layers < kLeastLayers) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected at least {} layers that say their kind to learn from, found "
                            "{}; measure more with `millrace bench latency`",
                            kLeastLayers, model.num_layers));
  }
  model.kinds[""] = all.fit(false);
  for (const auto& [kind, observations] : kinds) {
    model.kinds[kind] = observations.fit(true);
  }
  learn_updates(profiles, model);
  return model;
}

double predict_latency(const LatencyModel& model, const LayerProfile& layer, int64_t samples,
                       LayerPass pass) {
  auto found = model.kinds.find(layer.kind);
  if (found == model.kinds.end()) {
    found = model.kinds.find("");
    const bool has_weights = layer.parameter_bytes > 0;
    if (found == model.kinds.end() || (pass == LayerPass::kWeightGradient && !has_weights)) {
      return 0;
    }
  }
  const LatencyCurve& curve = found->second[static_cast<std::size_t>(pass)];
  return curve.means.empty()
             ? 0
             : std::exp(internal::evaluate(curve, internal::layer_features(layer, samples)));
}

Profile with_predicted_latencies(Profile profile, const LatencyModel& model,
                                 std::vector<std::string>* unknown) {
  if (profile.dtype != model.dtype) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the predictor learned times of {}, the layers are {}; learn from "
                            "layers of that dtype",
                            model.dtype, profile.dtype));
  }
  for (LayerProfile& layer : profile.layers) {
    if (layer.kind.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer {} does not say its kind, by which its times are predicted",
                              layer.name));
    }
    if (unknown != nullptr && model.kinds.count(layer.kind) == 0 &&
        std::find(unknown->begin(), unknown->end(), layer.kind) == unknown->end()) {
      unknown->push_back(layer.kind);
    }
    const auto predicted = [&](LayerPass pass) {
      return predict_latency(model, layer, profile.samples_per_microbatch, pass);
    };
    layer.forward_s = predicted(LayerPass::kForward);
    layer.input_gradient_s = predicted(LayerPass::kInputGradient);
    layer.weight_gradient_s = predicted(LayerPass::kWeightGradient);
    layer.update_s =
        layer.parameter_bytes == 0
            ? 0
            : model.update_s + model.update_s_per_byte * static_cast<double>(layer.parameter_bytes);
    layer.forward_spread_s = 0;
    layer.input_gradient_spread_s = 0;
    layer.weight_gradient_spread_s = 0;
    for (const char* field : {"forward_s", "input_gradient_s", "weight_gradient_s", "update_s"}) {
      if (!is_estimated(layer, field)) {
        layer.estimated.emplace_back(field);
      }
    }
  }
  return profile;
}

}  // namespace millrace
