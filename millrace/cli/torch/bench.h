// What the parts of `millrace bench` share: runs of a configuration, medians.
#pragma once

#include <string>
#include <vector>

#include "millrace/cli/common/options.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/core/run_config.h"
#include "millrace/model/loss.h"
#include "millrace/train/prepare.h"

namespace millrace::cli {

double median(std::vector<double> values);

// run.toml of a benchmark: synthetic data of Fashion-MNIST's shape, batch 128, SGD with momentum.
// `model` is "lenet", "mlp" (width 2048) or "resnet18".
RunConfig bench_config(const std::string& model, int workers, const std::string& planner,
                       const std::string& schedule, int stages);

// Of models that measure anything but learning: takes the output for its own gradient.
class NoLoss final : public Loss {
 public:
  const char* kind() const override { return "none"; }
  void check(const TensorSpec& /*output*/, const TensorSpec& /*target*/) const override {}
  LossSums evaluate(const at::Tensor& output, const at::Tensor& /*target*/,
                    at::Tensor* gradient) const override {
    if (gradient != nullptr) {
      *gradient = output;
    }
    return {.loss = 0, .correct = 0, .samples = output.size(0)};
  }
};

void bench_throughput(const BenchArgs& args, Output& output, Value& answer);
void bench_overhead(const BenchArgs& args, Output& output, Value& answer);
void bench_prediction(const BenchArgs& args, Output& output, Value& answer);
// As one of two processes, see main.cc of `millrace`.
void bench_collectives(const BenchArgs& args, Output& output, Value& answer);
void bench_rules(const BenchArgs& args, Output& output, Value& answer);
void bench_emulation(const BenchArgs& args, Output& output, Value& answer);
void bench_latency(const BenchArgs& args, Output& output, Value& answer);
void bench_loading(const BenchArgs& args, Output& output, Value& answer);

}  // namespace millrace::cli
