// What it costs to choose elements and to move those chosen, beside an update of as many: the
// ratios in rule/internal/choose.h, which rules charge in simulations. A pass is a quarter of an
// update.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>

#include "millrace/rule/internal/choose.h"
#include "millrace/rule/internal/keyed_values.h"

namespace millrace {
namespace {

constexpr int64_t kSize = 3'000'000;
constexpr int64_t kChosen = kSize * 15 / 100;

std::vector<double> scores() {
  std::vector<double> values(kSize);
  const RandomKey key(1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = key.uniform(i);
  }
  return values;
}

void update(benchmark::State& state) {
  std::vector<float> weights(kSize, 1);
  std::vector<float> velocity(kSize);
  const std::vector<float> gradient(kSize, 0.5F);
  for (auto _ : state) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      velocity[i] = 0.9F * velocity[i] + gradient[i];
      weights[i] -= 1e-4F * velocity[i];
    }
    benchmark::DoNotOptimize(weights.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kSize);
}
BENCHMARK(update)->Unit(benchmark::kMillisecond);

void choosing_the_highest(benchmark::State& state) {
  const std::vector<double> all = scores();
  for (auto _ : state) {
    benchmark::DoNotOptimize(internal::highest(all, kChosen).data());
  }
  state.SetItemsProcessed(state.iterations() * kSize);
}
BENCHMARK(choosing_the_highest)->Unit(benchmark::kMillisecond);

// Items: with no draw all others, else the draws.
void drawing(benchmark::State& state) {
  const std::vector<uint32_t> core = internal::highest(scores(), kChosen);
  const RandomKey key(1);
  uint64_t round = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        internal::draw_others(key.with(round++), kSize, core, state.range(0)).data());
  }
  state.SetItemsProcessed(state.iterations() * std::max(state.range(0), int64_t{1}));
}
BENCHMARK(drawing)->Arg(0)->Arg(kChosen)->Unit(benchmark::kMillisecond);

void moving_the_chosen(benchmark::State& state) {
  const std::vector<uint32_t> chosen = internal::highest(scores(), kChosen);
  std::vector<float> from(kSize, 1);
  std::vector<float> to(kChosen);
  Vector all{.size = kSize};
  all.data = from.data();
  Vector part{.size = kChosen};
  part.data = to.data();
  for (auto _ : state) {
    internal::gather(part, 0, all, chosen);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kChosen);
}
BENCHMARK(moving_the_chosen)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace
