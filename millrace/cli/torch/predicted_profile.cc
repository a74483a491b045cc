// millrace profile --predict: a profile whose times a learned model predicts, refined by some
// layers that are measured here. One untimed pass through the model counts its bytes.
#include "millrace/cli/torch/predicted_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/planner/device_fit.h"
#include "millrace/planner/latency_model.h"
#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/measure_layer.h"
#include "millrace/profiler/profile_model.h"

namespace millrace::cli {
namespace {

constexpr double kSecondsALayer = 0.1;

// Layers that can be measured on their own, the longest by prediction first, at most `most`.
std::vector<std::size_t> longest_layers(const Profile& profile, const Model& model, int most) {
  std::vector<std::size_t> layers(profile.layers.size());
  std::iota(layers.begin(), layers.end(), 0U);
  layers.erase(std::remove_if(layers.begin(), layers.end(),
                              [&](std::size_t l) { return !model.layers[l]->borrowed().empty(); }),
               layers.end());
  std::stable_sort(layers.begin(), layers.end(), [&](std::size_t a, std::size_t b) {
    return profile.layers[a].compute_s() > profile.layers[b].compute_s();
  });
  layers.resize(std::min(layers.size(), static_cast<std::size_t>(most)));
  return layers;
}

LayerProfile measure_of(Job& job, std::size_t l, const TensorSpecs& outputs, int64_t samples) {
  LayerAlone alone;
  const std::vector<int> from = job.model.inputs_of(static_cast<int>(l));
  alone.input = from.front() == kModelInput ? job.model.input
                                            : outputs[static_cast<std::size_t>(from.front())];
  alone.num_inputs = static_cast<int>(from.size());
  alone.values = job.data.train->num_classes();
  alone.samples = samples;
  alone.layer = std::move(job.model.layers[l]);
  return measure_layer(std::move(alone), kSecondsALayer);
}

// Takes layers out of the job's model.
Profile observe(Profile profile, Job& job, const ProfileArgs& args, Output& output) {
  const TensorSpecs outputs = check_model(job.model);
  const int64_t samples = profile.samples_per_microbatch;
  DeviceFit fit;
  const std::vector<std::size_t> chosen = longest_layers(profile, job.model, args.observe);
  for (const std::size_t l : chosen) {
    output.progress(fmt::format("observing layer {}", profile.layers[l].name));
    const LayerProfile measured = measure_of(job, l, outputs, samples);
    const LayerProfile& predicted = profile.layers[l];
    for (const LayerPass pass : kLayerPasses) {
      if (seconds_of(predicted, pass) > 0 && seconds_of(measured, pass) > 0) {
        fit.observe(predicted, samples, pass, seconds_of(predicted, pass),
                    seconds_of(measured, pass));
      }
    }
  }
  output.end_progress();
  output.text(
      fmt::format("{} times of {} layers observed\n", fit.num_observations(), chosen.size()));
  return with_fitted_latencies(std::move(profile), fit);
}

}  // namespace

int predicted_of(const ProfileArgs& args, const RunConfig& config, Job& job, int64_t samples,
                 Output& output) {
  const LatencyModel model = latency_model_from(read_document(args.predict));
  ProfileRequest request;
  request.model = &job.model;
  request.dataset = job.data.train.get();
  request.samples = samples;
  request.train = config.train;
  request.machine = model.machine;
  request.timed = false;
  std::vector<std::string> unknown;
  Profile profile = with_predicted_latencies(profile_model(request), model, &unknown);
  if (args.observe > 0) {
    profile = observe(std::move(profile), job, args, output);
    profile.machine = machine_name();
  }
  write_file_atomically(args.output, to_json(to_value(profile)) + "\n");
  output.document(to_value(profile));
  TextTable table({"layer", "kind", "forward", "input grad", "weight grad", "update"});
  double total_s = 0;
  for (const LayerProfile& layer : profile.layers) {
    total_s += layer.compute_s() + layer.update_s;
    table.row({layer.name, layer.kind, format_seconds(layer.forward_s),
               format_seconds(layer.input_gradient_s), format_seconds(layer.weight_gradient_s),
               format_seconds(layer.update_s)});
  }
  output.text(table.str());
  if (!unknown.empty()) {
    output.text(fmt::format("not learned, so a rough guess from layers of other kinds: {}\n",
                            join(unknown, ", ")));
  }
  output.text(
      fmt::format("{} a pass over {} samples, predicted from {} layers on {}; written to {}\n",
                  format_seconds(total_s), profile.samples_per_microbatch, model.num_layers,
                  model.machine.empty() ? "an unknown machine" : model.machine, args.output));
  return 0;
}

}  // namespace millrace::cli
