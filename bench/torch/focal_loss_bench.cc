// Focal loss on 1e6 x 8 logits, forward and backward: fused (model/focal_loss.cc) and composed of
// libtorch's operations with its autograd. One thread.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "millrace/model/loss.h"

namespace {

constexpr int64_t kSamples = 1'000'000;
constexpr int64_t kClasses = 8;

struct Input {
  Input() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    logits = torch::randn({kSamples, kClasses});
    target = torch::randint(0, kClasses, {kSamples}, torch::kLong);
  }
  at::Tensor logits;
  at::Tensor target;
};

void fused(benchmark::State& state) {
  const Input input;
  const std::unique_ptr<millrace::Loss> loss = millrace::focal_loss();
  for (auto _ : state) {
    at::Tensor gradient;
    benchmark::DoNotOptimize(loss->evaluate(input.logits, input.target, &gradient).loss);
    benchmark::DoNotOptimize(gradient.data_ptr<float>());
  }
}

// As it is commonly written: binary cross entropy with logits, weighted by the modulating factor.
void composed(benchmark::State& state) {
  const Input input;
  const at::Tensor own = torch::one_hot(input.target, kClasses).to(torch::kFloat);
  for (auto _ : state) {
    const at::Tensor x = input.logits.detach().requires_grad_(true);
    const at::Tensor p = torch::sigmoid(x);
    const at::Tensor cross =
        torch::binary_cross_entropy_with_logits(x, own, {}, {}, at::Reduction::None);
    const at::Tensor right = p * own + (1 - p) * (1 - own);
    const at::Tensor weight = 0.25 * own + 0.75 * (1 - own);
    const at::Tensor loss = (weight * (1 - right).pow(2) * cross).sum();
    loss.backward();
    benchmark::DoNotOptimize(x.grad().data_ptr<float>());
  }
}

BENCHMARK(fused)->Unit(benchmark::kMillisecond)->Repetitions(5)->ReportAggregatesOnly();
BENCHMARK(composed)->Unit(benchmark::kMillisecond)->Repetitions(5)->ReportAggregatesOnly();

}  // namespace
