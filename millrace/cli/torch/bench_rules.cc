// bench rules: every exchange rule on one configuration with the same samples, over several seeds:
// what it comes to, how long it takes beside its prediction, and what its replicas do meanwhile.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/rule/rule.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

// "server-bounded:staleness=15,lr=0.02": a rule, options of it, and a learning rate for it.
struct Contender {
  std::string text;
  std::string rule;
  std::vector<std::string> settings{};  // "rule.staleness=15"
  Job job{};                            // of the first seed
  std::vector<double> accuracies{};
  std::vector<double> train_s{};
  std::vector<StageTimes> times{};  // of all replicas, one a run
};

Contender contender_of(const std::string& text) {
  Contender contender{.text = text, .rule = text.substr(0, text.find(':'))};
  find_rule(contender.rule);
  if (const std::size_t colon = text.find(':'); colon != std::string::npos) {
    for (const std::string& option : split(text.substr(colon + 1), ',')) {
      contender.settings.push_back((option.starts_with("lr=") ? "train." : "rule.") + option);
    }
  }
  return contender;
}

std::vector<Contender> contenders_of(const BenchArgs& args) {
  std::vector<Contender> contenders;
  for (const std::string& text : args.rules) {
    contenders.push_back(contender_of(text));
  }
  for (const RuleEntry& entry : rules()) {
    if (args.rules.empty()) {
      contenders.push_back(contender_of(entry.name));
    }
  }
  return contenders;
}

RunConfig config_of(const BenchArgs& args, const Contender& contender, int seed) {
  std::vector<std::string> set = args.set;
  set.push_back("parallel.rule=" + contender.rule);
  set.push_back("train.seed=" + std::to_string(seed));
  set.insert(set.end(), contender.settings.begin(), contender.settings.end());
  return read_run_config(args.config, set);
}

// Means over the ranks of a run, seconds a step.
StageTimes mean_times(const Trace& trace) {
  StageTimes sum;
  double ranks = 0;
  for (const RankTrace& rank : trace.ranks) {
    if (rank.stages.empty()) {
      continue;
    }
    ranks += 1;
    sum.compute_s += rank.compute_s;
    sum.communicate_s += rank.communicate_s;
    sum.wait_s += rank.wait_s;
    sum.update_s += rank.update_s;
  }
  const double each =
      1 / (std::max(ranks, 1.0) * static_cast<double>(std::max<int64_t>(trace.num_steps, 1)));
  sum.compute_s *= each;
  sum.communicate_s *= each;
  sum.wait_s *= each;
  sum.update_s *= each;
  return sum;
}

int64_t steps_per_epoch(const Job& job) {
  return SampleOrder(job.data.train->size(), job.config.train.batch, job.config.train.seed)
      .steps_per_epoch();
}

// Of all epochs; none reaches beyond its end, so an epoch takes what its steps do by themselves.
double predict_run_s(const Job& job) {
  const int64_t whole = steps_per_epoch(job);
  const int64_t steps = total_steps(job.config.train, whole);
  const int64_t rest = steps % whole;
  double seconds = rest > 0 ? predict_epoch_s(job, rest) : 0;
  if (steps >= whole) {
    seconds += static_cast<double>(steps / whole) * predict_epoch_s(job, whole);
  }
  return seconds;
}

// Trains and evaluates one run.
void run(const Job& job, Contender& contender) {
  const RunConfig& config = job.config;
  const SampleOrder order(job.data.train->size(), config.train.batch, config.train.seed);
  Session session({.model = &job.model,
                   .plan = job.plan,
                   .policy = config.parallel.policy,
                   .blend_lambda = config.parallel.blend_lambda,
                   .train = config.train,
                   .timeout_s = config.parallel.timeout_s,
                   .on_demand = config.parallel.deal == "on-demand",
                   .emulation = job.emulation_or_null()});
  int64_t left = total_steps(config.train, order.steps_per_epoch());
  double train_s = 0;
  for (int64_t epoch = 0; left > 0; ++epoch) {
    const int64_t steps = std::min(left, order.steps_per_epoch());
    const double start_s = monotonic_s();
    session.train(*job.data.train, order, epoch, 0, steps, {});
    train_s += monotonic_s() - start_s;
    left -= steps;
  }
  contender.train_s.push_back(train_s / (job.emulation ? job.emulation->time_scale : 1));
  contender.times.push_back(mean_times(session.trace()));
  if (!config.emulates_model()) {
    const LossSums sums = session.evaluate(*job.data.test, config.train.batch);
    contender.accuracies.push_back(static_cast<double>(sums.correct) /
                                   static_cast<double>(sums.samples * job.model.predictions()));
  }
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += (value - mean(values)) * (value - mean(values));
  }
  return values.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median_of(const std::vector<StageTimes>& times, double StageTimes::*part) {
  std::vector<double> values;
  for (const StageTimes& each : times) {
    values.push_back(each.*part);
  }
  return median(std::move(values));
}

}  // namespace

void bench_rules(const BenchArgs& args, Output& output, Value& answer) {
  if (args.config.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "bench rules needs a configuration: millrace bench rules RUN.toml");
  }
  std::vector<Contender> contenders = contenders_of(args);
  PreparationSink sink(output);
  const PrepareOptions options{.cache_dir = cache_dir(), .sink = &sink};
  for (int seed = 1; seed <= args.repeats; ++seed) {
    for (Contender& contender : contenders) {
      output.progress(fmt::format("{}: run {} of {}", contender.text, seed, args.repeats));
      Job job = prepare(config_of(args, contender, seed), options);
      run(job, contender);
      if (seed == 1) {
        contender.job = std::move(job);
      }
    }
  }
  output.end_progress();

  const Contender& first = contenders.front();
  const int64_t steps = total_steps(first.job.config.train, steps_per_epoch(first.job));
  TextTable table({"rule", "accuracy", "spread", "trained in", "predicted", "difference",
                   "a step:", "compute", "communicate", "wait", "update"});
  Value& rows = answer.set("rules", Value::list());
  for (const Contender& contender : contenders) {
    const double took_s = median(contender.train_s);
    const double predicted_s = predict_run_s(contender.job);
    const auto part = [&](double StageTimes::*which) { return median_of(contender.times, which); };
    const bool judged = !contender.accuracies.empty();
    table.row(
        {contender.text, judged ? fmt::format("{:.2f}%", 100 * mean(contender.accuracies)) : "-",
         judged ? fmt::format("{:.2f}", 100 * deviation(contender.accuracies)) : "-",
         format_seconds(took_s), format_seconds(predicted_s),
         fmt::format("{:+.1f}%", 100 * (took_s / predicted_s - 1)), "",
         format_seconds(part(&StageTimes::compute_s)),
         format_seconds(part(&StageTimes::communicate_s)),
         format_seconds(part(&StageTimes::wait_s)), format_seconds(part(&StageTimes::update_s))});
    Value row = Value::map();
    row.set("rule", Value::of(contender.text));
    Value& accuracies = row.set("accuracies", Value::list());
    for (const double accuracy : contender.accuracies) {
      accuracies.push(Value::of(accuracy));
    }
    Value& runs = row.set("train_s", Value::list());
    for (const double train_s : contender.train_s) {
      runs.push(Value::of(train_s));
    }
    row.set("predicted_s", Value::of(predicted_s));
    row.set("compute_s", Value::of(part(&StageTimes::compute_s)));
    row.set("communicate_s", Value::of(part(&StageTimes::communicate_s)));
    row.set("wait_s", Value::of(part(&StageTimes::wait_s)));
    row.set("update_s", Value::of(part(&StageTimes::update_s)));
    rows.push(row);
  }
  answer.set("steps", Value::of(steps));
  output.text(fmt::format("{} steps of batch {}, seeds 1 to {}\n", steps,
                          first.job.config.train.batch, args.repeats));
  output.text(table.str());
}

}  // namespace millrace::cli
