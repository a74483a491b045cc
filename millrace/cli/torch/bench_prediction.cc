// bench prediction: profile and run in turn; the predicted step beside the measured one, every
// pair.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/text.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

constexpr int64_t kSteps = 32;

struct Setting {
  const char* title;
  const char* planner;
  const char* schedule;
  int stages;
};

// The stage and part of the step whose measured seconds are farthest from the predicted ones.
std::string largest_residual(const Trace& predicted, const Trace& measured) {
  const std::vector<StageTimes> expected = stage_times(predicted);
  const std::vector<StageTimes> found = stage_times(measured);
  std::string text = "none";
  double largest = 0;
  for (std::size_t s = 0; s < std::min(expected.size(), found.size()); ++s) {
    const auto consider = [&](const char* part, double expected_s, double found_s) {
      if (std::abs(found_s - expected_s) > largest) {
        largest = std::abs(found_s - expected_s);
        text = fmt::format("stage {} {}: {} predicted, {} measured", s, part,
                           format_seconds(expected_s), format_seconds(found_s));
      }
    };
    consider("compute", expected[s].compute_s, found[s].compute_s);
    consider("communicate", expected[s].communicate_s, found[s].communicate_s);
    consider("update", expected[s].update_s, found[s].update_s);
  }
  return text;
}

void bench_setting(const std::string& model, const Setting& setting, const BenchArgs& args,
                   Output& output, Value& rows) {
  PreparationSink sink(output);
  TextTable table(
      {fmt::format("{}, {}", model, setting.title), "predicted", "measured", "difference"});
  std::vector<double> differences;
  std::vector<double> measured_s;
  std::string residual;
  double worst = -1;
  Value pairs = Value::list();
  for (int repeat = 0; repeat < args.repeats; ++repeat) {
    output.progress(
        fmt::format("{}, {}: pair {} of {}", model, setting.title, repeat + 1, args.repeats));
    const Job job =
        prepare(bench_config(model, 2, setting.planner, setting.schedule, setting.stages),
                {.cache_dir = "", .fresh = true, .sink = nullptr});
    const SampleOrder order(job.data.train->size(), job.config.train.batch, 1);
    Session session(
        {.model = &job.model, .plan = job.plan, .policy = "", .train = job.config.train});
    session.train(*job.data.train, order, 0, 0, std::min(kSteps, order.steps_per_epoch()), {});
    const Trace measured = session.trace();
    const double difference = measured.step_s / job.predicted.step_s - 1;
    differences.push_back(std::abs(difference));
    measured_s.push_back(measured.step_s);
    if (std::abs(difference) > worst) {
      worst = std::abs(difference);
      residual = largest_residual(job.predicted.trace, measured);
    }
    table.row({fmt::format("pair {}", repeat + 1), format_seconds(job.predicted.step_s),
               format_seconds(measured.step_s), fmt::format("{:+.1f}%", 100 * difference)});
    Value pair = Value::map();
    pair.set("predicted_s", Value::of(job.predicted.step_s));
    pair.set("measured_s", Value::of(measured.step_s));
    pairs.push(pair);
  }
  output.end_progress();
  const auto [lowest, highest] = std::minmax_element(measured_s.begin(), measured_s.end());
  const double spread = *highest / *lowest - 1;
  output.text(table.str());
  output.text(
      fmt::format("median difference {:.1f}%; measured times alone spread {:.1f}%; largest "
                  "residual of the worst pair: {}\n\n",
                  100 * median(differences), 100 * spread, residual));
  Value row = Value::map();
  row.set("model", Value::of(model));
  row.set("setting", Value::of(setting.title));
  row.set("median_difference", Value::of(median(differences)));
  row.set("measured_spread", Value::of(spread));
  row.set("largest_residual", Value::of(residual));
  row.set("pairs", pairs);
  rows.push(row);
}

}  // namespace

void bench_prediction(const BenchArgs& args, Output& output, Value& answer) {
  const Setting settings[] = {{"pipedream, 2 stages", "pipedream", "pipedream", 2},
                              {"bsp, 2 workers", "data-parallel", "1f1b", 1}};
  const std::vector<std::string> models =
      args.models.empty() ? std::vector<std::string>{"lenet", "mlp"} : args.models;
  Value rows = Value::list();
  for (const std::string& model : models) {
    for (const Setting& setting : settings) {
      bench_setting(model, setting, args, output, rows);
    }
  }
  answer.set("settings", rows);
}

}  // namespace millrace::cli
