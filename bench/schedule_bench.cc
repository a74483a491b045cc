// Large schedules: actions a second that the simulator takes, and what making, checking and
// lowering cost. P = 64 ranks, M = 512 microbatches.
#include <benchmark/benchmark.h>

#include "millrace/schedule/lower.h"
#include "millrace/schedule/registry.h"
#include "millrace/schedule/validate.h"
#include "millrace/sim/simulate.h"

namespace millrace {
namespace {

const ScheduleConfig kLarge{.num_ranks = 64, .num_microbatches = 512};
constexpr const char* kNames[] = {"1f1b", "zb-h1", "chimera", "1f1b-interleaved"};

int64_t num_actions(const LoweredSchedule& lowered) {
  int64_t count = 0;
  for (const ActionList& list : lowered.ranks) {
    count += static_cast<int64_t>(list.size());
  }
  return count;
}

void simulating(benchmark::State& state) {
  const LoweredSchedule lowered = lower(make_schedule(kNames[state.range(0)], kLarge), 1);
  const Cluster cluster = free_cluster(kLarge.num_ranks);
  const SimulationInput input{
      .lowered = lowered, .costs = slot_costs(lowered.num_stages, 1, 2), .cluster = cluster};
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate(input).step_s);
  }
  state.SetItemsProcessed(state.iterations() * num_actions(lowered));
  state.SetLabel(kNames[state.range(0)]);
}
BENCHMARK(simulating)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

void validating(benchmark::State& state) {
  const Schedule schedule = make_schedule(kNames[state.range(0)], kLarge);
  for (auto _ : state) {
    validate(schedule);
  }
  state.SetLabel(kNames[state.range(0)]);
}
BENCHMARK(validating)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace
