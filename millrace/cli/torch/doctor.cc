// millrace doctor: what this machine offers.
#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/comm/engines.h"
#include "millrace/data/dataset.h"
#include "millrace/profiler/measure_cluster.h"

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

}  // namespace

int run_doctor(const DoctorArgs& args, Output& output) {
  if (args.workers < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--workers {}: expected at least 1", args.workers));
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
    output.text(fmt::format("measuring between {} workers ...\n", args.workers));
    const Cluster cluster = measure_cluster(args.workers, machine);
    write_file_atomically(args.output, to_toml(to_value(cluster)));
    const NetworkLevel& level = cluster.levels.front();
    output.text(fmt::format("hand-over {} and {}/s", format_seconds(level.latency_s),
                            format_bytes(level.bandwidth_bytes_per_s)));
    if (level.all_reduce_bandwidth_bytes_per_s) {
      output.text(fmt::format("; all-reduce {} and {}/s",
                              format_seconds(level.all_reduce_latency_s.value_or(0)),
                              format_bytes(*level.all_reduce_bandwidth_bytes_per_s)));
    }
    output.text(fmt::format("; written to {}\n", args.output));
    value.set("cluster", to_value(cluster));
  }
  output.document(value);
  return 0;
}

}  // namespace millrace::cli
