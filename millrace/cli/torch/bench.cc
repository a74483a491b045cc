// millrace bench WHAT: alternating runs, medians, ratios within one run of the command.
#include "millrace/cli/torch/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/profiler/measure_cluster.h"

namespace millrace::cli {

double median(std::vector<double> values) {
  MILLRACE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

RunConfig bench_config(const std::string& model, int workers, const std::string& planner,
                       const std::string& schedule, int stages) {
  RunConfig config;
  config.name = "bench";
  config.model.name = model;
  if (model == "mlp") {
    config.model.options.set("width", Value::of(2048));
  }
  config.data.name = "synthetic";
  config.data.options.set("samples", Value::of(4096));
  config.data.options.set("test_samples", Value::of(128));
  config.parallel.workers = workers;
  config.parallel.plan = planner;
  config.parallel.schedule = schedule;
  if (stages > 1) {
    config.parallel.stages = stages;
    config.parallel.replicas = {1};
  }
  config.train.batch = 128;
  config.train.lr = 0.01;
  config.train.momentum = 0.9;
  return config;
}

int run_bench(const BenchArgs& args, Output& output) {
  struct Part {
    const char* name;
    void (*run)(const BenchArgs&, Output&, Value&);
  };
  const Part parts[] = {{"throughput", bench_throughput}, {"overhead", bench_overhead},
                        {"prediction", bench_prediction}, {"emulation", bench_emulation},
                        {"rules", bench_rules},           {"loading", bench_loading},
                        {"latency", bench_latency},       {"collectives", bench_collectives}};
  if (args.repeats < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--repeats {}: expected at least 1", args.repeats));
  }
  for (const Part& part : parts) {
    if (args.what == part.name) {
      Value answer = Value::map();
      answer.set("bench", Value::of(part.name));
      answer.set("machine", Value::of(machine_name()));
      answer.set("repeats", Value::of(args.repeats));
      if (args.what != "collectives") {  // whose second process keeps silent
        output.text(
            fmt::format("{}; median of {} alternating runs\n", machine_name(), args.repeats));
      }
      part.run(args, output, answer);
      output.end_progress();
      output.document(answer);
      return 0;
    }
  }
  std::vector<std::string> names;
  for (const Part& part : parts) {
    names.emplace_back(part.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no benchmark `{}`; there are {}{}", args.what, join(names, ", "),
                          did_you_mean(args.what, names)));
}

}  // namespace millrace::cli
