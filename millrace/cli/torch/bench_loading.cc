// bench loading: epochs of parts that take L to load and C to train, loaded ahead and inline,
// against L + (n - 1) max(L, C) + C and n (L + C). L and C are those of the run itself: a machine
// that others share wakes a thread later than was asked.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/train/session.h"
#include "millrace/transport/pause.h"

namespace millrace::cli {
namespace {

constexpr double kComputeS = 0.020;
constexpr double kForwardShare = 1.0 / 3;

// Adds what it took to `spent_s`.
void pause(double seconds, double& spent_s) {
  static const AbortFlag never;
  const double start_s = monotonic_s();
  pause_until(start_s + seconds, never);
  spent_s += monotonic_s() - start_s;
}

// Takes the time of a device that computes elsewhere.
class Computes final : public Layer {
 public:
  // `spent_s`: counts what it took; only one thread computes.
  explicit Computes(double& spent_s) : Layer("computes"), spent_s_(spent_s) {}
  const char* kind() const override { return "computes"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  // One, so that there is something to go back for.
  std::vector<ParameterSpec> parameters() const override { return {{"w", {1}, 0.0, 0.0}}; }
  at::Tensor forward(const LayerContext& /*context*/, at::TensorList inputs,
                     const Tensors& /*weights*/, Tensors& /*saved*/) const override {
    pause(kForwardShare * kComputeS, spent_s_);
    return inputs[0];
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& /*saved*/,
                         const Tensors& /*weights*/, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& /*kept*/) const override {
    return need_input_gradient ? Tensors{grad} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& /*kept*/,
                       const Tensors& /*sums*/) const override {
    pause((1 - kForwardShare) * kComputeS, spent_s_);
  }

 private:
  double& spent_s_;
};

// Parts that take a while, as from a slow disk.
class Slow final : public Dataset {
 public:
  // `spent_s`: counts what it took; only one thread at a time loads.
  Slow(int64_t samples, double seconds, double& spent_s)
      : samples_(samples), seconds_(seconds), spent_s_(spent_s) {}
  int64_t size() const override { return samples_; }
  TensorSpec input() const override { return {{1}, at::kFloat}; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return 1; }
  Batch get(const int64_t* /*indices*/, int64_t count, at::ScalarType dtype) const override {
    pause(seconds_, spent_s_);
    return {at::zeros({count, 1}, dtype), at::zeros({count}, at::kLong)};
  }

 private:
  int64_t samples_;
  double seconds_;
  double& spent_s_;
};

struct Epoch {
  double epoch_s = 0;
  double load_s = 0;  // of a part, as are these
  double compute_s = 0;
};

// Steps of one part each, so that every part is loaded once and trained.
Epoch run_epoch(const char* loading, int64_t num_parts, double load_s) {
  Epoch measured;
  Model model;
  model.name = "computes";
  model.input = {{1}, at::kFloat};
  model.target = {{}, at::kLong};
  model.append(std::make_unique<Computes>(measured.compute_s));
  model.loss = std::make_unique<NoLoss>();
  Plan plan;
  plan.workers = 1;
  plan.stages = {{{"computes"}, {0}}};
  TrainConfig config;
  config.batch = 1;
  config.loading = loading;
  Session session({.model = &model, .plan = plan, .policy = "", .train = config});
  const Slow data(num_parts, load_s, measured.load_s);
  const SampleOrder order(num_parts, 1, 1);
  const double start_s = monotonic_s();
  session.train(data, order, 0, 0, num_parts, {});
  measured.epoch_s = monotonic_s() - start_s;
  measured.load_s /= static_cast<double>(num_parts);
  measured.compute_s /= static_cast<double>(num_parts);
  return measured;
}

// One way of loading: its runs, and what was to be expected of each.
struct Way {
  std::vector<double> epochs_s;
  std::vector<double> expected_s;
  std::vector<double> ratios;

  void add(double epoch_s, double expected) {
    epochs_s.push_back(epoch_s);
    expected_s.push_back(expected);
    ratios.push_back(epoch_s / expected);
  }
};

struct Setting {
  int64_t num_parts;
  double load_s;  // asked for
  Way parallel = {};
  Way inline_way = {};

  void run() {
    const auto n = static_cast<double>(num_parts);
    const Epoch ahead = run_epoch("parallel", num_parts, load_s);
    parallel.add(ahead.epoch_s, ahead.load_s + (n - 1) * std::max(ahead.load_s, ahead.compute_s) +
                                    ahead.compute_s);
    const Epoch plain = run_epoch("inline", num_parts, load_s);
    inline_way.add(plain.epoch_s, n * (plain.load_s + plain.compute_s));
  }
  double gain() const { return median(inline_way.epochs_s) / median(parallel.epochs_s); }
};

Value to_value(const Way& way) {
  Value value = Value::map();
  value.set("expected_s", Value::of(median(way.expected_s)));
  value.set("epoch_s", Value::of(median(way.epochs_s)));
  value.set("ratio", Value::of(median(way.ratios)));
  Value& runs = value.set("ratios", Value::list());
  for (const double ratio : way.ratios) {
    runs.push(Value::of(ratio));
  }
  return value;
}

}  // namespace

void bench_loading(const BenchArgs& args, Output& output, Value& answer) {
  std::vector<Setting> settings;
  for (const int64_t num_parts : {7, 20}) {
    for (const double ratio : {0.5, 1.0, 2.0}) {
      settings.push_back({num_parts, ratio * kComputeS});
    }
  }
  for (int repeat = 0; repeat < args.repeats; ++repeat) {
    output.progress(fmt::format("run {} of {}", repeat + 1, args.repeats));
    for (Setting& setting : settings) {
      setting.run();
    }
  }
  output.end_progress();
  TextTable table({"parts", "L / C", "expected", "parallel", "ratio", "lowest", "highest",
                   "inline expected", "inline", "ratio", "gain"});
  Value rows = Value::list();
  for (const Setting& setting : settings) {
    const auto [lowest, highest] =
        std::minmax_element(setting.parallel.ratios.begin(), setting.parallel.ratios.end());
    table.row(
        {fmt::format("{}", setting.num_parts), fmt::format("{:g}", setting.load_s / kComputeS),
         format_seconds(median(setting.parallel.expected_s)),
         format_seconds(median(setting.parallel.epochs_s)),
         fmt::format("{:.3f}", median(setting.parallel.ratios)), fmt::format("{:.3f}", *lowest),
         fmt::format("{:.3f}", *highest), format_seconds(median(setting.inline_way.expected_s)),
         format_seconds(median(setting.inline_way.epochs_s)),
         fmt::format("{:.3f}", median(setting.inline_way.ratios)),
         fmt::format("{:.2f}x", setting.gain())});
    Value row = Value::map();
    row.set("parts", Value::of(setting.num_parts));
    row.set("load_s", Value::of(setting.load_s));
    row.set("compute_s", Value::of(kComputeS));
    row.set("parallel", to_value(setting.parallel));
    row.set("inline", to_value(setting.inline_way));
    row.set("gain", Value::of(setting.gain()));
    rows.push(row);
  }
  output.text(table.str());
  output.text(fmt::format(
      "an epoch of n parts, C = {} or a little more: L + (n - 1) max(L, C) + C expected of loading "
      "in parallel, n (L + C) of loading inline, by each run's own L and C\n",
      format_seconds(kComputeS)));
  answer.set("settings", rows);
}

}  // namespace millrace::cli
