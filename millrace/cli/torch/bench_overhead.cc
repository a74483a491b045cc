// bench overhead: what the runtime itself costs: two stages that compute nothing, 64 microbatches,
// ranks of one process.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/cli/torch/bench.h"
#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

// Hands its input on; so does its gradient.
class Nothing final : public Layer {
 public:
  using Layer::Layer;
  const char* kind() const override { return "nothing"; }
  TensorSpec output(const TensorSpecs& inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters() const override { return {}; }
  at::Tensor forward(const LayerContext& /*context*/, at::TensorList inputs,
                     const Tensors& /*weights*/, Tensors& /*saved*/) const override {
    return inputs[0];
  }
  Tensors backward_input(const LayerContext& /*context*/, Tensors& /*saved*/,
                         const Tensors& /*weights*/, const at::Tensor& grad,
                         bool need_input_gradient, Tensors& /*kept*/) const override {
    return need_input_gradient ? Tensors{grad} : Tensors{};
  }
  void backward_weight(const LayerContext& /*context*/, const Tensors& /*kept*/,
                       const Tensors& /*sums*/) const override {}
};

// Always the same two tensors, so that loading costs nothing either.
class Empty final : public Dataset {
 public:
  explicit Empty(int64_t samples)
      : samples_(samples), input_(at::zeros({1, 1})), target_(at::zeros({1}, at::kLong)) {}
  int64_t size() const override { return samples_; }
  TensorSpec input() const override { return {{1}, at::kFloat}; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return 1; }
  Batch get(const int64_t* /*indices*/, int64_t /*count*/,
            at::ScalarType /*dtype*/) const override {
    return {input_, target_};
  }

 private:
  int64_t samples_;
  at::Tensor input_;
  at::Tensor target_;
};

}  // namespace

void bench_overhead(const BenchArgs& args, Output& output, Value& answer) {
  constexpr int kMicrobatches = 64;
  constexpr int64_t kSteps = 200;
  Model model;
  model.name = "empty";
  model.input = {{1}, at::kFloat};
  model.target = {{}, at::kLong};
  model.layers.push_back(std::make_unique<Nothing>("first"));
  model.layers.push_back(std::make_unique<Nothing>("second"));
  model.loss = std::make_unique<NoLoss>();
  // One sample a microbatch, and an epoch long enough for a whole run to be one segment.
  const Empty data(kMicrobatches * kSteps);
  TrainConfig config;
  config.batch = kMicrobatches;
  const SampleOrder order(data.size(), kMicrobatches, 1);
  TextTable table({"schedule", "actions a step", "step", "an action", "lowest", "highest"});
  Value rows = Value::list();
  for (const char* name : {"gpipe", "1f1b"}) {
    Plan plan;
    plan.workers = 2;
    plan.schedule = name;
    plan.microbatches = kMicrobatches;
    plan.stages = {{{"first"}, {0}}, {{"second"}, {1}}};
    const Schedule schedule =
        make_schedule(name, {.num_ranks = 2, .num_microbatches = kMicrobatches});
    int64_t actions = 0;
    for (const ActionList& list : lower(schedule, plan, 1).ranks) {
      actions += static_cast<int64_t>(list.size());
    }
    Session session({.model = &model, .plan = plan, .policy = "", .train = config});
    std::vector<double> action_s;
    std::vector<double> step_s;
    for (int repeat = 0; repeat <= args.repeats; ++repeat) {
      const double start_s = monotonic_s();
      session.train(data, order, 0, 0, kSteps, {});
      const double seconds = (monotonic_s() - start_s) / kSteps;
      if (repeat > 0) {  // the first warms up
        step_s.push_back(seconds);
        action_s.push_back(seconds / static_cast<double>(actions));
      }
    }
    std::sort(action_s.begin(), action_s.end());
    table.row({name, fmt::format("{}", actions), format_seconds(median(step_s)),
               format_seconds(median(action_s)), format_seconds(action_s.front()),
               format_seconds(action_s.back())});
    Value row = Value::map();
    row.set("schedule", Value::of(name));
    row.set("actions_per_step", Value::of(actions));
    row.set("step_s", Value::of(median(step_s)));
    row.set("action_s", Value::of(median(action_s)));
    rows.push(row);
  }
  output.text(table.str());
  output.text(
      "two empty stages, 64 microbatches, two threads: step time over all lowered actions\n");
  answer.set("schedules", rows);
}

}  // namespace millrace::cli
