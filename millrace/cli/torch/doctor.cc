// millrace doctor: what this machine offers.
#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/find_world.h"
#include "millrace/cli/common/flops_text.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/cli/torch/doctor_links.h"
#include "millrace/comm/engines.h"
#include "millrace/data/dataset.h"
#include "millrace/profiler/measure_cluster.h"
#include "millrace/profiler/measure_peak.h"

namespace millrace::cli {
namespace {

// The BLAS that the loader mapped, by its file name.
std::string blas_library() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.rfind('/');
    if (slash == std::string::npos) {
      continue;
    }
    const std::string path = line.substr(line.find('/'));
    for (const char* name : {"openblas", "blis", "mkl", "atlas", "libblas"}) {
      if (path.find(name) != std::string::npos) {
        return path;
      }
    }
  }
  return "none found";
}

// Whether a dataset with its default options can be read here, in words.
std::string data_state(const DataEntry& entry) {
  try {
    Document none{"[data]", Value::map()};
    Reader reader(none);
    const DataSplits splits = entry.make(reader, 1);
    return fmt::format("{} training, {} test samples", format_count(splits.train->size()),
                       format_count(splits.test->size()));
  } catch (const Error& error) {
    return error.what();
  }
}

// "1.2 us and 9.9 GB/s"
std::string speeds(const NetworkLevel& level) {
  return fmt::format("{} and {}/s", format_seconds(level.latency_s),
                     format_bytes(level.bandwidth_bytes_per_s));
}

// A message's latency and bandwidth, as JSON.
Value to_answer(const NetworkLevel& level) {
  Value value = Value::map();
  value.set("latency_s", Value::of(level.latency_s));
  value.set("bandwidth_bytes_per_s", Value::of(level.bandwidth_bytes_per_s));
  return value;
}

void measure_peaks(int workers, Output& output, Value& value) {
  constexpr double kSeconds = 0.3;
  const double flops = measure_gemm_flops_per_s(workers, at::kFloat, kSeconds);
  const double alone = measure_copy_bytes_per_s(1, array_beyond_caches(1), kSeconds);
  const double together = measure_copy_bytes_per_s(workers, array_beyond_caches(workers), kSeconds);
  output.text(fmt::format("products  {}/s a worker while {} are busy, float32\n",
                          format_flops(flops), workers));
  output.text(fmt::format("memory    {}/s of one worker that copies, {}/s a worker of {} at once\n",
                          format_bytes(alone), format_bytes(together / workers), workers));
  Value peak = Value::map();
  peak.set("workers", Value::of(workers));
  peak.set("gemm_flops_per_s", Value::of(flops));
  peak.set("copy_bytes_per_s", Value::of(alone));
  peak.set("copy_bytes_per_s_together", Value::of(together));
  value.set("peak", std::move(peak));
}

void measure(const DoctorArgs& args, const std::string& machine,
             const std::vector<EngineLink>& links, Output& output, Value& value) {
  output.text(fmt::format("measuring between {} workers ...\n", args.workers));
  measure_peaks(args.workers, output, value);
  const Cluster cluster = measure_cluster(args.workers, machine);
  write_file_atomically(args.output, to_toml(to_value(cluster)));
  const NetworkLevel& level = cluster.levels.front();
  Value answers = Value::map();
  answers.set("inproc", to_answer(level));
  for (const EngineLink& link : links) {
    if (link.failure.empty()) {
      output.text(fmt::format("link      {} between two processes of this machine, by {}\n",
                              speeds(link.level), link.engine));
      answers.set(link.engine, to_answer(link.level));
    } else {
      output.text(fmt::format("link      by {}: not measured: {}\n", link.engine, link.failure));
      Value failure = Value::map();
      failure.set("error", Value::of(link.failure));
      answers.set(link.engine, std::move(failure));
    }
  }
  value.set("links", std::move(answers));
  output.text(fmt::format("hand-over {}", speeds(level)));
  if (level.all_reduce_bandwidth_bytes_per_s) {
    output.text(fmt::format("; all-reduce {} and {}/s",
                            format_seconds(level.all_reduce_latency_s.value_or(0)),
                            format_bytes(*level.all_reduce_bandwidth_bytes_per_s)));
  }
  output.text(fmt::format("; written to {}\n", args.output));
  value.set("cluster", to_value(cluster));
}

}  // namespace

int run_doctor(const DoctorArgs& args, Output& output) {
  if (args.workers < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--workers {}: expected at least 1", args.workers));
  }
  std::vector<EngineLink> links;
  if (args.measure) {
    const WorldPlace place = find_world({}, std::getenv);
    if (place.num_processes > 1) {
      return measure_this_world(args, place, output);
    }
    links = measure_links_between_processes();  // before this process has other threads
  }
  const std::string machine = machine_name();
  const std::string blas = blas_library();
  Value value = Value::map();
  value.set("machine", Value::of(machine));
  value.set("memory_bytes", Value::of(machine_memory_bytes()));
  value.set("intra_op_threads", Value::of(at::get_num_threads()));
  value.set("blas", Value::of(blas));
  Value engines = Value::list();
  for (const std::string& engine : built_engines()) {
    engines.push(Value::of(engine));
  }
  value.set("engines", engines);
  output.text(
      fmt::format("machine   {}, {} memory\n", machine, format_bytes(machine_memory_bytes())));
  output.text(fmt::format("threads   {} inside an operation (ranks are the parallelism)\n",
                          at::get_num_threads()));
  output.text(fmt::format("BLAS      {}\n", blas));
  output.text(fmt::format("engines   {}\n", join(built_engines(), ", ")));
  Value sets = Value::map();
  for (const DataEntry& entry : datasets()) {
    const std::string state = data_state(entry);
    sets.set(entry.name, Value::of(state));
    output.text(fmt::format("data      {}: {}\n", entry.name, state));
  }
  value.set("datasets", sets);
  if (args.measure) {
    measure(args, machine, links, output, value);
  }
  output.document(value);
  return 0;
}

}  // namespace millrace::cli
