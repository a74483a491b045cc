// FlexFlow's planner: an edit simulated anew (delta) against building and simulating the whole task
// graph; how many searches find the exhaustive optimum; what the planner reaches on published
// profiles (the folder MILLRACE_PROFILES) and on a large chain.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <ctime>

#include "millrace/base/file.h"
#include "millrace/core/pipedream_graph.h"
#include "tests/planner/internal/flexflow_testing.h"

namespace millrace {
namespace {

using testing::flat;
using testing::random_configuration;
using testing::random_operators;
using testing::two_levels;

double cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The same edits both ways, one after the other so that both meet the same machine: 32 devices in
// machines of 8. `search`: edits are kept or taken back by FlexFlow's rule, from data parallel;
// else all are kept, and the strategy is soon a random one.
void delta_and_full(benchmark::State& state, bool search) {
  const int num_layers = static_cast<int>(state.range(0));
  std::mt19937 random(static_cast<unsigned>(num_layers));
  const Profile profile = random_operators(num_layers, random);
  const Cluster cluster = two_levels(8, 4, 12e9, 1.25e9);
  const internal::SoapProblem problem = internal::soap_problem(profile, cluster, 32);
  internal::TaskGraph graph(problem, internal::data_parallel_strategy(problem));
  const double beta = 200 / graph.cost_s();
  double delta_s = 0;
  double full_s = 0;
  int64_t tasks = 0;
  int64_t simulated = graph.num_simulated();
  const auto edit = [&](bool timed) {
    const int op = static_cast<int>(random() % problem.operators.size());
    const std::vector<internal::TaskGraph::Edit> edits = {
        {op, random_configuration(problem, op, false, random)}};
    const double old_s = graph.cost_s();
    const double begin_s = cpu_s();
    const double new_s = graph.edit(edits);
    const double between_s = cpu_s();
    if (timed) {
      const internal::TaskGraph anew(problem, graph.strategy());
      benchmark::DoNotOptimize(anew.cost_s());
      full_s += cpu_s() - between_s;
      tasks += graph.num_tasks();
    }
    const double undo_s = cpu_s();
    if (search && new_s > old_s &&
        std::generate_canonical<double, 53>(random) >= std::exp(beta * (old_s - new_s))) {
      graph.undo();
    }
    delta_s += timed ? between_s - begin_s + cpu_s() - undo_s : 0;
  };
  for (int n = 0; n < 10 * num_layers; ++n) {
    edit(false);
  }
  simulated = graph.num_simulated();
  for (auto _ : state) {
    edit(true);
  }
  simulated = graph.num_simulated() - simulated;
  const auto edits = static_cast<double>(state.iterations());
  state.SetLabel(
      fmt::format("{:.0f} tasks, {:.0f}% simulated again; delta {:.0f} us, full {:.0f} us, {:.2f}x",
                  static_cast<double>(tasks) / edits,
                  100.0 * static_cast<double>(simulated) / static_cast<double>(tasks),
                  1e6 * delta_s / edits, 1e6 * full_s / edits, full_s / delta_s));
}
BENCHMARK_CAPTURE(delta_and_full, random_walk, false)
    ->Arg(20)
    ->Arg(60)
    ->Arg(120)
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(delta_and_full, search, true)
    ->Arg(20)
    ->Arg(60)
    ->Arg(120)
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

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
