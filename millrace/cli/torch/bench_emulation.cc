// bench emulation: a run on emulated devices against its simulation, and what its plan gains over
// plain data parallel in both.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/schedule/registry.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

// The same model, batch, devices and links with a replica of everything on every worker.
RunConfig as_data_parallel(RunConfig config) {
  config.parallel.plan = "data-parallel";
  config.parallel.schedule = "1f1b";
  config.parallel.policy.clear();
  config.parallel.stages.reset();
  config.parallel.replicas.clear();
  config.parallel.microbatches = 1;
  config.parallel.microbatch_size.reset();
  return config;
}

// Enough steps for a median; without a flush as many as the simulation takes.
int64_t steps_of(const Job& job) {
  constexpr int64_t kFlushSteps = 10;
  const Schedule schedule =
      make_schedule(job.plan.schedule, schedule_config(job.plan), job.config.parallel.policy);
  const int64_t chosen = schedule.flush ? kFlushSteps : job.predicted.trace.num_steps;
  const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
  return std::min(job.config.train.max_steps.value_or(chosen), order.steps_per_epoch());
}

// Seconds of a step of the emulated devices, in a new session each time.
double emulated_step_s(const Job& job) {
  const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
  Session session({.model = &job.model,
                   .plan = job.plan,
                   .policy = job.config.parallel.policy,
                   .blend_lambda = job.config.parallel.blend_lambda,
                   .train = job.config.train,
                   .timeout_s = job.config.parallel.timeout_s,
                   .emulation = job.emulation_or_null()});
  session.train(*job.data.train, order, 0, 0, steps_of(job), {});
  return session.trace().step_s;
}

struct Contender {
  std::string name;
  Job job;
  std::vector<double> steps_s = {};

  double simulated_s() const { return job.predicted.step_s; }
  double emulated_s() const { return median(steps_s); }
  double difference() const { return emulated_s() / simulated_s() - 1; }
};

Value to_value(const Contender& contender) {
  Value value = Value::map();
  value.set("plan", Value::of(describe(contender.job.plan)));
  value.set("simulated_s", Value::of(contender.simulated_s()));
  value.set("emulated_s", Value::of(contender.emulated_s()));
  value.set("difference", Value::of(contender.difference()));
  value.set("objective_s", Value::of(contender.job.plan.minibatch_s));
  Value& runs = value.set("runs_s", Value::list());
  for (const double step_s : contender.steps_s) {
    runs.push(Value::of(step_s));
  }
  return value;
}

}  // namespace

void bench_emulation(const BenchArgs& args, Output& output, Value& answer) {
  if (args.config.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "bench emulation needs a configuration: millrace bench emulation RUN.toml");
  }
  const RunConfig config = read_run_config(args.config, args.set);
  if (!config.emulate) {
    throw Error(ErrorCode::kInvalidArgument,
                "expected a table [emulate], found none; docs/emulation.md shows one")
        .in_file(args.config)
        .at_key("emulate");
  }
  PreparationSink sink(output);
  const PrepareOptions options{.cache_dir = cache_dir(), .sink = &sink};
  std::vector<Contender> contenders;
  contenders.push_back({"this plan", prepare(config, options)});
  contenders.push_back({"data parallel", prepare(as_data_parallel(config), options)});
  for (int repeat = 0; repeat < args.repeats; ++repeat) {
    for (Contender& contender : contenders) {
      output.progress(fmt::format("{}: run {} of {}", contender.name, repeat + 1, args.repeats));
      contender.steps_s.push_back(emulated_step_s(contender.job));
    }
  }
  output.end_progress();

  TextTable table({"step", "simulated", "emulated", "difference", "plan"});
  for (const Contender& contender : contenders) {
    table.row({contender.name, format_seconds(contender.simulated_s()),
               format_seconds(contender.emulated_s()),
               fmt::format("{:+.1f}%", 100 * contender.difference()),
               describe(contender.job.plan)});
  }
  const Contender& own = contenders[0];
  const Contender& replicated = contenders[1];
  const double promise = replicated.simulated_s() / own.simulated_s();
  const double gain = replicated.emulated_s() / own.emulated_s();
  output.text(table.str());
  output.text(
      fmt::format("gain over data parallel at {} samples a step: {:.2f}x promised, {:.2f}x "
                  "emulated ({:+.1f}%)\n",
                  config.train.batch, promise, gain, 100 * (gain / promise - 1)));
  answer.set("this_plan", to_value(own));
  answer.set("data_parallel", to_value(replicated));
  answer.set("promise", Value::of(promise));
  answer.set("gain", Value::of(gain));
}

}  // namespace millrace::cli
