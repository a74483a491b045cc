// FlexFlow's planner: an edit simulated anew (delta) against building and simulating the whole task
// graph; how many searches find the exhaustive optimum; what the planner reaches on published
// profiles (the folder MILLRACE_PROFILES) and on a large chain.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>

#include "millrace/base/file.h"
#include "millrace/core/pipedream_graph.h"
#include "tests/planner/internal/flexflow_testing.h"

namespace millrace {
namespace {

using testing::flat;
using testing::random_configuration;
using testing::random_operators;
using testing::two_levels;

// One edit, taken back by hand outside the time: 32 devices in machines of 8.
struct Edits {
  explicit Edits(int num_layers)
      : random(static_cast<unsigned>(num_layers)),
        profile(random_operators(num_layers, random)),
        cluster(two_levels(8, 4, 12e9, 1.25e9)),
        problem(internal::soap_problem(profile, cluster, 32)),
        graph(problem, internal::data_parallel_strategy(problem)) {
    for (int op = 0; op < num_layers; ++op) {
      graph.edit({{op, random_configuration(problem, op, false, random)}});
    }
  }
  internal::TaskGraph::Edit next() {
    const int op = static_cast<int>(random() % problem.operators.size());
    return {op, random_configuration(problem, op, false, random)};
  }
  std::mt19937 random;
  Profile profile;
  Cluster cluster;
  internal::SoapProblem problem;
  internal::TaskGraph graph;
};

void delta(benchmark::State& state) {
  Edits edits(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(edits.graph.edit({edits.next()}));
  }
  state.SetLabel(fmt::format("{} tasks", edits.graph.num_tasks()));
}
BENCHMARK(delta)->Arg(20)->Arg(60)->Arg(120)->Unit(benchmark::kMicrosecond);

void full(benchmark::State& state) {
  Edits edits(static_cast<int>(state.range(0)));
  internal::Strategy strategy = edits.graph.strategy();
  for (auto _ : state) {
    const auto [op, configuration] = edits.next();
    strategy[op] = configuration;
    const internal::TaskGraph anew(edits.problem, strategy);
    benchmark::DoNotOptimize(anew.cost_s());
  }
  state.SetLabel(fmt::format("{} tasks", edits.graph.num_tasks()));
}
BENCHMARK(full)->Arg(20)->Arg(60)->Arg(120)->Unit(benchmark::kMicrosecond);

// Everything of an edit and its simulation alike: only the simulation, all of it.
void simulating_all(benchmark::State& state) {
  Edits edits(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    const auto configuration = random_configuration(edits.problem, 0, false, edits.random);
    benchmark::DoNotOptimize(edits.graph.edit({{0, configuration}}));  // a source: nothing is kept
  }
}
BENCHMARK(simulating_all)->Arg(20)->Arg(60)->Arg(120)->Unit(benchmark::kMicrosecond);

// Five operators on four devices: 759,375 strategies tried, then 40 searches of 4,000 proposals.
void optimum(benchmark::State& state) {
  for (auto _ : state) {
    std::mt19937 random(static_cast<unsigned>(state.range(0)));
    const Profile profile = random_operators(5, random, {"Linear"});
    const Cluster cluster = flat(4, 2e9);
    const internal::SoapProblem problem = internal::soap_problem(profile, cluster, 4);
    int64_t strategies = 0;
    const double optimum_s = testing::exhaustive_optimum_s(problem, strategies);
    const double start_s =
        internal::TaskGraph(problem, internal::data_parallel_strategy(problem)).cost_s();
    state.SetLabel(fmt::format("{} of 40 find the best of {}, {:.2f}x data parallel",
                               testing::searches_that_find(problem, optimum_s, 40), strategies,
                               start_s / optimum_s));
  }
}
BENCHMARK(optimum)->DenseRange(1, 6)->Iterations(1)->Unit(benchmark::kSecond);

// The plan and the strategies in its note, beside data parallel.
void plan(benchmark::State& state, const Profile& profile, const Cluster& cluster) {
  for (auto _ : state) {
    const int workers = cluster.num_devices();
    const Plan planned = make_plan("flexflow", {profile, cluster, workers, {}, {}, false});
    const internal::SoapProblem problem = internal::soap_problem(profile, cluster, workers);
    const double data_parallel_s =
        internal::TaskGraph(problem, internal::data_parallel_strategy(problem)).cost_s();
    std::string label =
        fmt::format("{}: {:.2f} ms, data parallel {:.2f} ms", testing::shape(planned),
                    1e3 * planned.objective_s, 1e3 * data_parallel_s);
    for (const std::string& note : planned.notes) {
      label += "; " + note.substr(0, 400);
    }
    state.SetLabel(label);
  }
}

void published(benchmark::State& state, const std::string& name, const Cluster& cluster) {
  const char* folder = std::getenv("MILLRACE_PROFILES");
  if (folder == nullptr) {
    state.SkipWithError("MILLRACE_PROFILES names no folder of published profiles");
    return;
  }
  const std::string file = std::string(folder) + "/" + name + ".graph.txt";
  plan(state, profile_from_pipedream_graph(read_file(file), file, name, 64), cluster);
}
BENCHMARK_CAPTURE(published, alexnet, "alexnet", two_levels(4, 4, 12e9, 1.25e9))
    ->Iterations(1)
    ->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(published, vgg16, "vgg16", two_levels(4, 4, 12e9, 1.25e9))
    ->Iterations(1)
    ->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(published, resnet50, "resnet50", two_levels(4, 4, 12e9, 1.25e9))
    ->Iterations(1)
    ->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(published, gnmt, "gnmt", two_levels(4, 4, 12e9, 1.25e9))
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

void large_chain(benchmark::State& state) {
  std::mt19937 random(1);
  Profile profile = random_operators(2000, random);
  make_chain(profile);
  plan(state, profile, two_levels(8, 128, 12e9, 1.25e9));
}
BENCHMARK(large_chain)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace millrace
