// bench throughput: two-stage pipedream and two-worker bsp over one worker with one thread, beside
// what stage balance and two independent workers running at once allow. The pipeline's workers see
// whole minibatches, those of bsp half a minibatch each, and so do the independent workers that each
// is held against: an update costs the same however few samples it follows.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

constexpr double kRunS = 2.5;  // of steady training, each run

// One configuration, ready to be trained again and again.
class Contender {
 public:
  explicit Contender(const Job& job)
      : job_(job),
        order_(job.data.train->size(), job.config.train.batch, job.config.train.seed),
        session_({.model = &job.model, .plan = job.plan, .policy = "", .train = job.config.train}) {
    steps(3);  // warm up, and learn how long a step takes
    const double start_s = monotonic_s();
    steps(3);
    const double step_s = (monotonic_s() - start_s) / 3;
    num_steps_ = std::max<int64_t>(10, static_cast<int64_t>(kRunS / step_s));
  }

  // Samples a second over one run, fill and drain included.
  double run() {
    const double start_s = monotonic_s();
    const int64_t samples = steps(num_steps_);
    return static_cast<double>(samples) / (monotonic_s() - start_s);
  }

 private:
  int64_t steps(int64_t count) {
    int64_t samples = 0;
    while (count > 0) {
      const int64_t part = std::min(count, order_.steps_per_epoch());
      session_.train(
          *job_.data.train, order_, epoch_++, 0, part,
          {.on_step = [&](int64_t /*step*/, const LossSums& sums) { samples += sums.samples; },
           .stop_requested = {}});
      count -= part;
    }
    return samples;
  }

  const Job& job_;
  SampleOrder order_;
  Session session_;
  int64_t epoch_ = 0;
  int64_t num_steps_ = 0;
};

// Two contenders at once, each on a thread of its own; the sum of their speeds.
double run_together(Contender& a, Contender& b) {
  double speed_b = 0;
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      speed_b = b.run();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  const double speed_a = a.run();
  other.join();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return speed_a + speed_b;
}

// Speed-up of a two-stage pipeline that only the uneven split of the work limits.
double balance_limit(const Job& job) {
  const std::vector<StageCost> costs =
      stage_costs(job.plan, job.profile, static_cast<double>(job.profile.samples_per_microbatch));
  double total = 0;
  double slowest = 0;
  for (const StageCost& cost : costs) {
    const double seconds =
        cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s + cost.update_s;
    total += seconds;
    slowest = std::max(slowest, seconds);
  }
  return total / slowest;
}

void bench_model(const std::string& model, const BenchArgs& args, Output& output, Value& rows) {
  PreparationSink sink(output);
  const PrepareOptions options{.cache_dir = "", .fresh = true, .sink = &sink};
  const Job one = prepare(bench_config(model, 1, "one", "1f1b", 1), options);
  const Job pipeline = prepare(bench_config(model, 2, "pipedream", "pipedream", 2), options);
  const Job bsp = prepare(bench_config(model, 2, "data-parallel", "1f1b", 1), options);
  output.end_progress();
  RunConfig half_config = bench_config(model, 1, "one", "1f1b", 1);
  half_config.train.batch /= 2;
  const Job half = prepare(half_config, options);
  Contender single(one);
  Contender single_too(one);
  Contender half_single(half);
  Contender half_single_too(half);
  Contender pipelined(pipeline);
  Contender replicated(bsp);
  std::vector<double> single_speed;
  std::vector<double> independent;
  std::vector<double> independent_halves;
  std::vector<double> pipedream_gain;
  std::vector<double> bsp_gain;
  for (int repeat = 0; repeat < args.repeats; ++repeat) {
    output.progress(fmt::format("{}: round {} of {}", model, repeat + 1, args.repeats));
    const double base = single.run();
    single_speed.push_back(base);
    pipedream_gain.push_back(pipelined.run() / base);
    bsp_gain.push_back(replicated.run() / base);
    independent.push_back(run_together(single, single_too) / base);
    independent_halves.push_back(run_together(half_single, half_single_too) / base);
  }
  output.end_progress();
  const double two_workers = median(independent);
  const double two_halves = median(independent_halves);
  const double balance = balance_limit(pipeline);
  // Two independent workers show what the machine's cores, caches and memory give to two threads; a
  // pipeline cannot have more, and its slower stage bounds it besides.
  const double pipedream_limit = balance * two_workers / 2;
  const double pipedream = median(pipedream_gain);
  const double replicas = median(bsp_gain);
  TextTable table({model, "over one worker", "allowed", "of allowed"});
  table.row({"pipedream, 2 stages", fmt::format("{:.2f}x", pipedream),
             fmt::format("{:.2f}x", pipedream_limit),
             fmt::format("{:.2f}", pipedream / pipedream_limit)});
  table.row({"bsp, 2 workers", fmt::format("{:.2f}x", replicas),
             fmt::format("{:.2f}x", two_halves), fmt::format("{:.2f}", replicas / two_halves)});
  output.text(table.str());
  output.text(fmt::format(
      "one worker {:.0f} samples/s; stage balance allows {:.2f}x; two independent workers at once "
      "reach {:.2f}x (spread {:.2f} to {:.2f}) with whole minibatches each, {:.2f}x with half a "
      "minibatch each, as bsp's have; plan {}\n\n",
      median(single_speed), balance, two_workers,
      *std::min_element(independent.begin(), independent.end()),
      *std::max_element(independent.begin(), independent.end()), two_halves,
      describe(pipeline.plan)));
  const auto list = [](const std::vector<double>& values) {
    Value all = Value::list();
    for (const double value : values) {
      all.push(Value::of(value));
    }
    return all;
  };
  Value row = Value::map();
  row.set("model", Value::of(model));
  row.set("one_worker_samples_per_s", list(single_speed));
  row.set("independent_gain", list(independent));
  row.set("independent_halves_gain", list(independent_halves));
  row.set("pipedream_gain", list(pipedream_gain));
  row.set("bsp_gain", list(bsp_gain));
  row.set("balance_limit", Value::of(balance));
  row.set("pipedream_of_allowed", Value::of(pipedream / pipedream_limit));
  row.set("bsp_of_allowed", Value::of(replicas / two_halves));
  rows.push(row);
}

}  // namespace

void bench_throughput(const BenchArgs& args, Output& output, Value& answer) {
  const std::vector<std::string> models =
      args.models.empty() ? std::vector<std::string>{"lenet", "mlp"} : args.models;
  Value rows = Value::list();
  for (const std::string& model : models) {
    bench_model(model, args, output, rows);
  }
  answer.set("models", rows);
}

}  // namespace millrace::cli
