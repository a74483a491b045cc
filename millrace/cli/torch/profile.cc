// millrace profile: measure the layers of a model, or its primitives.
#include <fmt/format.h>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/flops_text.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/cli/torch/kernel_table.h"
#include "millrace/cli/torch/predicted_profile.h"
#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/profile_model.h"

namespace millrace::cli {
namespace {

int layers_of(const ProfileArgs& args, const RunConfig& config, const Job& job, int64_t samples,
              Output& output) {
  PreparationSink progress(output);
  ProfileRequest request;
  request.model = &job.model;
  request.dataset = job.data.train.get();
  request.samples = samples;
  request.busy_ranks = config.parallel.workers;
  request.train = config.train;
  request.machine = machine_name();
  const std::string what = fmt::format("profiling {} at {} samples, {} busy workers",
                                       job.model.name, request.samples, request.busy_ranks);
  request.progress = [&](double fraction) { progress.on_progress(what, fraction); };
  const Profile profile = profile_model(request);
  output.end_progress();
  write_file_atomically(args.output, to_json(to_value(profile)) + "\n");
  output.document(to_value(profile));
  TextTable table({"layer", "kind", "forward", "input grad", "weight grad", "update", "FLOPs",
                   "of peak", "output", "parameters", "stash"});
  double total_s = 0;
  double total_flops = 0;
  for (const LayerProfile& layer : profile.layers) {
    total_s += layer.compute_s() + layer.update_s;
    total_flops += layer.flops();
    table.row({layer.name, layer.kind, format_spread(layer.forward_s, layer.forward_spread_s),
               format_spread(layer.input_gradient_s, layer.input_gradient_spread_s),
               format_spread(layer.weight_gradient_s, layer.weight_gradient_spread_s),
               format_seconds(layer.update_s), format_flops(layer.flops()),
               format_share(layer.flops(), layer.compute_s(), profile.peak_flops_per_s),
               format_bytes(static_cast<double>(layer.output_bytes)),
               format_bytes(static_cast<double>(layer.parameter_bytes)),
               format_bytes(static_cast<double>(layer.stash_bytes))});
  }
  output.text(table.str());
  output.text(fmt::format(
      "{} a pass over {} samples: {}, {} of the {}/s that a worker reaches at "
      "most; written to {}\n",
      format_seconds(total_s), profile.samples_per_microbatch, format_flops(total_flops),
      format_share(total_flops, total_s, profile.peak_flops_per_s),
      format_flops(profile.peak_flops_per_s), args.output));
  return 0;
}

int kernels_of(const ProfileArgs& args, const RunConfig& config, const Job& job, int64_t samples,
               Output& output) {
  PreparationSink progress(output);
  KernelRequest request;
  request.model = &job.model;
  request.dataset = job.data.train.get();
  request.samples = samples;
  request.microbatches = config.parallel.microbatches;
  request.busy_ranks = config.parallel.workers;
  request.train = config.train;
  request.machine = machine_name();
  const std::string what =
      fmt::format("recording {} at {} x {} samples, {} busy workers", job.model.name,
                  request.microbatches, request.samples, request.busy_ranks);
  request.progress = [&](double fraction) { progress.on_progress(what, fraction); };
  const KernelProfile profile = profile_kernels(request);
  output.end_progress();
  write_file_atomically(args.output, to_json(to_value(profile)) + "\n");
  output.document(to_value(profile));
  output.text(kernel_table(profile));
  output.text(fmt::format("written to {}\n", args.output));
  return 0;
}

}  // namespace

int run_profile(const ProfileArgs& args, Output& output) {
  const RunConfig config = read_run_config(args.run.config, args.run.set);
  if (config.emulates_model()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("this run waits by the profile {} and computes nothing that could be "
                            "measured or predicted; profile a run without it",
                            config.emulate->profile))
        .in_file(args.run.config)
        .at_key("emulate.profile");
  }
  Job job;
  load_data_and_model(config, job);
  const int64_t samples =
      args.samples.value_or(split_evenly(config.train.batch, config.parallel.microbatches).front());
  if (samples < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--samples {}: expected at least 1", samples));
  }
  if (!args.predict.empty()) {
    return predicted_of(args, config, job, samples, output);
  }
  return args.kernels ? kernels_of(args, config, job, samples, output)
                      : layers_of(args, config, job, samples, output);
}

}  // namespace millrace::cli
