// bench throughput: two-stage pipedream and two-worker bsp over one worker with one thread, beside
// what stage balance and two independent workers running at once allow. The pipeline's workers see
// whole minibatches, those of bsp half a minibatch each, and so do the independent workers that
// each is held against: an update costs the same however few samples it follows.
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

// Minibatches of the pipeline and of bsp. A minibatch of resnet18 takes seconds on one core.
struct Batches {
  int64_t pipeline = 128;
  int64_t bsp = 128;
};

Batches batches_of(const std::string& model) {
  return model == "resnet18" ? Batches{32, 128} : Batches{};
}

RunConfig config_of(const std::string& model, int workers, const std::string& planner,
                    const std::string& schedule, int stages, int64_t batch) {
  RunConfig config = bench_config(model, workers, planner, schedule, stages);
  config.train.batch = batch;
  return config;
}

// One configuration, ready to be trained again and again.
class Contender {
 public:
  explicit Contender(const Job& job)
      : job_(job),
        order_(job.data.train->size(), job.config.train.batch, job.config.train.seed),
        session_({.model = &job.model, .plan = job.plan, .policy = "", .train = job.config.train}) {
    num_steps_ = kFillSteps + 1;
    const double samples_per_s = run();  // warms up, and tells how long a step takes
    const double steps = kRunS * samples_per_s / static_cast<double>(job.config.train.batch);
    num_steps_ = kFillSteps + std::max<int64_t>(4, static_cast<int64_t>(steps));
  }

  // Samples a second in the steady state of one run: from the end of its first steps, in which a
  // pipeline fills, to that of its last.
  double run() {
    int64_t samples = 0;
    double start_s = 0;
    double end_s = 0;
    const auto on_step = [&](int64_t step, const LossSums& sums) {
      end_s = monotonic_s();
      if (step < kFillSteps) {
        start_s = end_s;
      } else {
        samples += sums.samples;
      }
    };
    const int64_t steps = std::min(num_steps_, order_.steps_per_epoch());
    session_.train(*job_.data.train, order_, epoch_++, 0, steps, {.on_step = on_step});
    return static_cast<double>(samples) / (end_s - start_s);
  }

 private:
  static constexpr int64_t kFillSteps = 2;

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
  const Batches batches = batches_of(model);
  const Job one = prepare(config_of(model, 1, "one", "1f1b", 1, batches.pipeline), options);
  const Job pipeline =
      prepare(config_of(model, 2, "pipedream", "pipedream", 2, batches.pipeline), options);
  const Job whole = prepare(config_of(model, 1, "one", "1f1b", 1, batches.bsp), options);
  const Job bsp = prepare(config_of(model, 2, "data-parallel", "1f1b", 1, batches.bsp), options);
  const Job half = prepare(config_of(model, 1, "one", "1f1b", 1, batches.bsp / 2), options);
  output.end_progress();
  Contender single(one);
  Contender single_too(one);
  Contender whole_single(whole);
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
    independent.push_back(run_together(single, single_too) / base);
    const double whole_base = whole_single.run();
    bsp_gain.push_back(replicated.run() / whole_base);
    independent_halves.push_back(run_together(half_single, half_single_too) / whole_base);
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
  TextTable table({model, "minibatch", "over one worker", "allowed", "of allowed"});
  table.row({"pipedream, 2 stages", fmt::format("{}", batches.pipeline),
             fmt::format("{:.2f}x", pipedream), fmt::format("{:.2f}x", pipedream_limit),
             fmt::format("{:.2f}", pipedream / pipedream_limit)});
  table.row({"bsp, 2 workers", fmt::format("{}", batches.bsp), fmt::format("{:.2f}x", replicas),
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
