// bench latency: measures many small layers, learns to predict their times, and says how far off
// the predictor is: on layers that it has not seen, on devices that it has not seen, and for the
// partition that planners make of its times. Writes what it measured and learned.
//
// AccEPT (arXiv 2311.05827) is what it is about; see planner/latency_model.h.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/cli/torch/latency_layers.h"
#include "millrace/planner/latency_checks.h"
#include "millrace/planner/latency_model.h"
#include "millrace/profiler/measure_cluster.h"

namespace millrace::cli {
namespace {

constexpr double kSecondsAMeasurement = 0.012;
constexpr int64_t kDeviceSamples = 16;  // layers of so many samples are measured on slowed devices
constexpr std::size_t kDeviceLayers = 120;  // so many of them, at most

const char* const kSlowed[] = {"sleep", "compute", "memory"};

Throttle throttle_of(const std::string& device, const LayerProfile& layer, int64_t samples) {
  Throttle throttle;
  if (device == "sleep") {
    throttle.sleep = 2;
  } else if (device == "compute") {
    throttle.flops = 0.25 * pass_flops(layer, samples, LayerPass::kForward);
  } else if (device == "memory") {
    throttle.bytes = 2 * pass_bytes(layer, samples);
  }
  return throttle;
}

// What the layer is, before it is measured.
LayerProfile described(const LayerAlone& alone) {
  LayerProfile layer;
  layer.name = alone.layer->name();
  layer.kind = alone.layer->kind();
  layer.input_shape = alone.input.sample_shape;
  const TensorSpecs inputs(static_cast<std::size_t>(alone.num_inputs), alone.input);
  const TensorSpec output = alone.layer->output(inputs);
  layer.output_shape = output.sample_shape;
  layer.forward_flops = static_cast<double>(alone.samples) * alone.layer->forward_flops(inputs);
  layer.output_bytes = alone.samples * output.sample_bytes();
  const std::vector<ParameterSpec> parameters = alone.layer->parameters();
  if (!parameters.empty()) {
    layer.weight_shape = parameters.front().shape;
  }
  for (const ParameterSpec& parameter : parameters) {
    layer.parameter_bytes += parameter.elements() * static_cast<int64_t>(sizeof(float));
  }
  return layer;
}

// The layer's median over rounds, and half the distance between their quarters.
LayerProfile joined(const std::vector<LayerProfile>& rounds) {
  LayerProfile layer = rounds.front();
  const auto join_times = [&](double LayerProfile::*time, double LayerProfile::*spread) {
    std::vector<double> seconds;
    for (const LayerProfile& round : rounds) {
      seconds.push_back(round.*time);
    }
    std::sort(seconds.begin(), seconds.end());
    layer.*time = median(seconds);
    const std::size_t quarter = seconds.size() / 4;
    layer.*spread = 0.5 * (seconds[seconds.size() - 1 - quarter] - seconds[quarter]);
  };
  join_times(&LayerProfile::forward_s, &LayerProfile::forward_spread_s);
  join_times(&LayerProfile::input_gradient_s, &LayerProfile::input_gradient_spread_s);
  join_times(&LayerProfile::weight_gradient_s, &LayerProfile::weight_gradient_spread_s);
  return layer;
}

std::string file_of(const std::string& folder, const std::string& device, int64_t samples) {
  return fmt::format("{}/{}-{}.json", folder, device, samples);
}

class Measuring {
 public:
  Measuring(const BenchArgs& args, Output& output) : args_(args), output_(output) {
    for (DrawnLayer& drawn : draw_layers(args.layers, 1)) {
      const LayerAlone alone = drawn.make();
      known_.push_back({std::move(drawn), described(alone), alone.samples});
    }
  }

  // Rounds over all layers, so that a slow minute of the machine does not fall on one kind.
  std::vector<Profile> measure(const std::string& device) {
    std::vector<const Known*> chosen;
    for (const Known& known : known_) {
      if (device == "first" || known.samples == kDeviceSamples) {
        chosen.push_back(&known);
      }
    }
    if (device != "first" && chosen.size() > kDeviceLayers) {
      std::vector<const Known*> some;
      for (std::size_t i = 0; i < kDeviceLayers; ++i) {
        some.push_back(chosen[i * chosen.size() / kDeviceLayers]);
      }
      chosen = std::move(some);
    }
    std::vector<std::vector<LayerProfile>> rounds(chosen.size());
    for (int round = 0; round < args_.repeats; ++round) {
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        output_.progress(fmt::format("{} device, round {} of {}: layer {} of {}", device, round + 1,
                                     args_.repeats, i + 1, chosen.size()));
        const Known& known = *chosen[i];
        rounds[i].push_back(measure_layer(known.drawn.make(), kSecondsAMeasurement,
                                          throttle_of(device, known.described, known.samples)));
      }
    }
    std::map<int64_t, Profile> by_samples;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      Profile& profile = by_samples[chosen[i]->samples];
      profile.model = fmt::format("layers on the {} device", device);
      profile.machine = machine_name();
      profile.samples_per_microbatch = chosen[i]->samples;
      profile.layers.push_back(joined(rounds[i]));
    }
    std::vector<Profile> profiles;
    for (auto& [samples, profile] : by_samples) {
      make_chain(profile);
      write_file_atomically(file_of(args_.output, device, samples),
                            to_json(to_value(profile)) + "\n");
      profiles.push_back(std::move(profile));
    }
    return profiles;
  }

 private:
  struct Known {
    DrawnLayer drawn;
    LayerProfile described;
    int64_t samples;
  };
  const BenchArgs& args_;
  Output& output_;
  std::vector<Known> known_;
};

// Of an earlier call.
std::vector<Profile> read_profiles(const std::string& folder, const std::string& device) {
  std::vector<Profile> profiles;
  for (const int64_t samples : drawn_samples()) {
    const std::string path = file_of(folder, device, samples);
    if (std::filesystem::exists(path)) {
      profiles.push_back(profile_from(read_document(path)));
    }
  }
  if (profiles.empty()) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("expected {} and such, which `millrace bench latency -o {}` writes",
                            file_of(folder, device, kDeviceSamples), folder));
  }
  return profiles;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

Value to_value(const LatencyErrors& errors) {
  Value value = Value::map();
  value.set("times", Value::of(errors.times));
  value.set("spread", Value::of(errors.spread));
  value.set("predicted", Value::of(errors.predicted));
  value.set("flops_only", Value::of(errors.flops_only));
  return value;
}

void show_held_out(const std::vector<HeldOutLayer>& layers, Output& output, Value& answer) {
  const std::vector<HeldOutErrors> rows = held_out_errors(layers);
  TextTable table({"held-out layers", "times", "spread of repeats", "predictor", "FLOPs only"});
  Value list = Value::list();
  for (const HeldOutErrors& row : rows) {
    table.row({row.what, format_count(row.errors.times), percent(row.errors.spread),
               percent(row.errors.predicted), percent(row.errors.flops_only)});
    Value item = to_value(row.errors);
    item.set("what", Value::of(row.what));
    list.push(std::move(item));
  }
  output.text(table.str());
  answer.set("held_out", std::move(list));
}

void show_devices(const std::vector<HeldOutLayer>& first,
                  const std::map<std::string, std::vector<Profile>>& devices, Output& output,
                  Value& answer) {
  TextTable table({"unseen device, 20 observations", "slower by", "times", "base measured",
                   "base predicted", "FLOPs only"});
  Value list = Value::list();
  for (const auto& [device, profiles] : devices) {
    const DeviceErrors errors = unseen_device_errors(first, profiles, 20);
    table.row({device, fmt::format("{:.2f}x", errors.slower), format_count(errors.times),
               percent(errors.base_measured), percent(errors.base_predicted),
               percent(errors.flops_only)});
    Value item = Value::map();
    item.set("device", Value::of(device));
    item.set("slower", Value::of(errors.slower));
    item.set("times", Value::of(errors.times));
    item.set("base_measured", Value::of(errors.base_measured));
    item.set("base_predicted", Value::of(errors.base_predicted));
    item.set("flops_only", Value::of(errors.flops_only));
    list.push(std::move(item));
  }
  output.text(table.str());
  answer.set("devices", std::move(list));
}

void show_partition(const std::vector<HeldOutLayer>& layers, Output& output, Value& answer) {
  const PartitionErrors errors = partition_errors(layers);
  output.text(fmt::format(
      "{} chains of {} held-out layers in {} stages: the slowest stage of the partition by "
      "predicted "
      "times is, by measured ones, {} above the best in the mean, {} at most; by FLOPs {} and {}\n",
      errors.chains, errors.layers, errors.stages, percent(errors.mean), percent(errors.most),
      percent(errors.flops_mean), percent(errors.flops_most)));
  Value item = Value::map();
  item.set("chains", Value::of(errors.chains));
  item.set("mean", Value::of(errors.mean));
  item.set("most", Value::of(errors.most));
  item.set("flops_mean", Value::of(errors.flops_mean));
  item.set("flops_most", Value::of(errors.flops_most));
  answer.set("partition", std::move(item));
}

}  // namespace

void bench_latency(const BenchArgs& args, Output& output, Value& answer) {
  std::vector<Profile> first;
  std::map<std::string, std::vector<Profile>> devices;
  if (args.from.empty()) {
    make_directories(args.output);
    Measuring measuring(args, output);
    first = measuring.measure("first");
    for (const char* device : kSlowed) {
      devices[device] = measuring.measure(device);
    }
  } else {
    first = read_profiles(args.from, "first");
    for (const char* device : kSlowed) {
      devices[device] = read_profiles(args.from, device);
    }
  }
  output.end_progress();
  const std::vector<HeldOutLayer> held_out = hold_out(first);
  show_held_out(held_out, output, answer);
  show_devices(held_out, devices, output, answer);
  show_partition(held_out, output, answer);
  make_directories(args.output);
  const std::string path = args.output + "/model.json";
  const LatencyModel model = learn_latencies(first);
  write_file_atomically(path, to_json(to_value(model)) + "\n");
  output.text(fmt::format("learned from {} layers; written to {}\n", model.num_layers, path));
}

}  // namespace millrace::cli
